"""Shipped for tests, ours and those of adapters, rules, stores and tools that build on watchglass."""

from watchglass.testing.adapter_suite import AdapterCase, AdapterSuite
from watchglass.testing.build_run import Row, RunBuilder, Step, build_run

__all__ = ["AdapterCase", "AdapterSuite", "Row", "RunBuilder", "Step", "build_run"]
