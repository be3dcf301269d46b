"""Shipped for tests, ours and those of rules, stores and tools that build on watchglass."""

from watchglass.testing.build_run import Row, RunBuilder, Step, build_run

__all__ = ["Row", "RunBuilder", "Step", "build_run"]
