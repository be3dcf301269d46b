"""What the phases of steps, which are times of the host, cannot show."""

from __future__ import annotations

from watchglass.records import facts
from watchglass.tables import StepView


def why_updates_are_unclear(view: StepView) -> str:
    """Why other work and an update may be in one phase, as a clause; "" if they are not."""
    optimizer = view.latest_fact(facts.OptimizerSettings)
    if optimizer is None:
        return "the script writes its updates itself, so other work may be a part of them"
    if optimizer.type == "LBFGS":
        return "LBFGS computes forwards and backwards within its step"
    return ""
