"""Evaluators and what they deliver to, for tests: fleets, Ray, receivers, stops, back-tests."""
