"""Guards without a port, for tests of what listens through one."""

from __future__ import annotations

from watchglass.capture.guard import Guard
from watchglass.capture.planning.cost import Cost
from watchglass.capture.planning.plan import Plan
from watchglass.config import SessionConfig


class _NoRecorder:
    """Stands for a recorder; nothing is recorded."""


def guard(*, strict: bool = True) -> Guard:
    """A guard whose faults are raised, unless ``strict`` is false; nothing else is done about them."""
    cost = Cost(Plan(SessionConfig(run="unused"), lambda: 0, 0), _NoRecorder(), 0)  # type: ignore[arg-type]
    return Guard(cost, lambda error, where: None, strict=strict)
