"""StopTraining: which findings stop the run. The stop protocol does the rest."""

from __future__ import annotations

from watchglass.actions.subscription import Subscription
from watchglass.config import parameter
from watchglass.records import Severity


class StopTraining(Subscription):
    """Stops the training at a step that all its workers have before them.

    Needs no process of its own and no second try: the evaluator asks the workers where they are, commits a step that
    none of them has passed, and sends signals only to those that do not come to it. The stopped training ends with exit
    status 86. ``--stop-on error`` is short for ``--action StopTraining``.

    Example: StopTraining:severity=warning,rules=ExplodingTensor
    """

    severity: Severity = parameter(Severity.ERROR, help="least severity of a finding")
    grace_s: float | None = parameter(
        None,
        help="how long workers may take to reach the step, before SIGTERM; 30 when not given",
        unit="seconds",
        gt=0,
    )
