"""CheckNaN: a NaN in the loss, a weight or a gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import signals
from watchglass.rules.classic.first_bad import find_culprit
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class CheckNaN(Rule):
    """The loss, a weight or a gradient is NaN.

    Looks at: the loss at every step; weights, biases and gradients at captured steps.
    Fires when: one of them holds a NaN. Infinite values are not reported, nor is a step that a gradient scaler skipped:
        ExplodingTensor judges both, and searches for the first module.
    Usual causes: a learning rate that is too high, NaN in the data, log or division by zero in the loss.
        An operation outside the range where its value or its gradient is finite, which is named where it is known.
    What to try: see ExplodingTensor.
    Costs: nothing beyond the statistics that are captured by default.
    Source: exact; SageMaker Debugger documentation (ExplodingTensor with only_nan).
    """

    needs = (
        Needs(scalars=("loss",), why="to see a loss that is NaN"),
        Needs(statistics=("nan", "nonfinite"), optional=True, why="to see which tensor is NaN"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
    )
    modes = (Mode.TRAIN,)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding of a training step."""
        loss, rows = signals.loss(view), view.statistics()
        bad_loss = loss is not None and math.isnan(loss)
        bad = rows.where(rows.nan > 0) if len(rows) else rows
        names = [info.name for info in bad.tensors if info.role in (Role.LOSS, Role.WEIGHT, Role.BIAS, Role.GRADIENT)]
        if not (bad_loss or names) or (signals.skipped(view) and not bad_loss):
            return
        culprit = find_culprit(view, bad, bad_loss=bad_loss)
        what = "the loss is NaN" if bad_loss else f"{names[0]} holds NaN"
        yield self.finding(
            view,
            severity=Severity.WARNING if culprit.harmless else Severity.ERROR,
            subject=f"unharmed: {culprit.symptoms[0]}" if culprit.harmless else "NaN",
            tensors=names[:16] or ["loss"],
            value=math.nan,
            message=f"{what} at step {view.mode_step}{culprit.sentence}",
            symptoms=culprit.symptoms,
            evidence={**culprit.to_json(), **signals.evidence(view)},
        )
