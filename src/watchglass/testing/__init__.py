"""Shipped for tests, ours and those of adapters, rules, stores, trainings and tools that build on watchglass.

Names load when first used: a test suite that uses none of them pays nothing for the pytest plugin that is in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.testing.action_suite import ActionSuite, delivered, example_event
    from watchglass.testing.adapter_suite import AdapterCase, AdapterSuite
    from watchglass.testing.builder import Batch, Row, RunBuilder, Silence, Step, build_run
    from watchglass.testing.clock import FakeClock
    from watchglass.testing.healthy import assert_trains_healthy

__all__ = [
    "ActionSuite", "AdapterCase", "AdapterSuite", "Batch", "FakeClock", "Row", "RunBuilder", "Silence", "Step",
    "assert_trains_healthy", "build_run", "delivered", "example_event",
]  # fmt: skip

_HOMES = {
    "action_suite": ("ActionSuite", "delivered", "example_event"),
    "adapter_suite": ("AdapterCase", "AdapterSuite"),
    "builder": ("Batch", "Row", "RunBuilder", "Silence", "Step", "build_run"),
    "clock": ("FakeClock",),
    "healthy": ("assert_trains_healthy",),
}

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
