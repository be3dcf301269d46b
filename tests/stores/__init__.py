"""Stores and what lies in them, for tests: stores that fail, segments, spools, rings, compacted runs."""
