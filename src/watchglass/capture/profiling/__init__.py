"""Profilers of frameworks in windows of training steps; for adapters."""
