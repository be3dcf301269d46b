"""Shipped for tests, ours and those of adapters, rules, stores, trainings and tools that build on watchglass.

Names load when first used: a test suite that uses none of them pays nothing for the pytest plugin that is in here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchglass.testing.action_suite import ActionSuite, delivered, example_event
    from watchglass.testing.adapter_suite import AdapterCase, AdapterSuite
    from watchglass.testing.builder import Row, RunBuilder, Step, build_run
    from watchglass.testing.healthy import assert_trains_healthy

__all__ = [
    "ActionSuite", "AdapterCase", "AdapterSuite", "Row", "RunBuilder", "Step", "assert_trains_healthy", "build_run",
    "delivered", "example_event",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(("ActionSuite", "delivered", "example_event"), "action_suite"),
    **dict.fromkeys(("AdapterCase", "AdapterSuite"), "adapter_suite"),
    **dict.fromkeys(("Row", "RunBuilder", "Step", "build_run"), "builder"),
    "assert_trains_healthy": "healthy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
