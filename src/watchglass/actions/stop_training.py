"""StopTraining: which findings stop the run. The stop protocol does the rest."""

from __future__ import annotations

from watchglass.actions.subscription import Subscription
from watchglass.config import parameter
from watchglass.records import Severity


class StopTraining(Subscription):
    """Stops the run at a step that no worker has reached yet.

    The evaluator asks the workers for their steps and commits a step beyond all of them. It sends signals only to
    workers that do not reach this step in time. The run ends with exit status 86. ``--stop-on error`` is short for
    ``--action StopTraining``.

    Example: StopTraining:severity=warning,rules=ExplodingTensor
    """

    severity: Severity = parameter(Severity.ERROR, help="lowest severity of a finding")
    grace_s: float | None = parameter(
        None, help="time for workers to reach the step, before SIGTERM; 30 if not given", unit="seconds", gt=0
    )
