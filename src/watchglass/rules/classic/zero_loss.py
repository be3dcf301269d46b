"""ZeroLoss: the loss is zero from the beginning."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class ZeroLoss(Rule):
    """The loss is zero or almost zero from the first steps on.

    Looks at: the losses of the first `steps` steps.
    Fires when: all of them are at most `threshold`. The finding is a `warning` if all are exactly zero, else an `info`.
    Usual causes: a loss over an empty mask or an empty part of the batch, targets that equal the inputs, one class.
    What to try: print the predictions and the targets of one batch.
    Costs: nothing in addition to the loss.
    Source: 1e-5: TheDeepChecker; house: from the first step on, since a run may converge to zero.
    """

    starts_with = "task"
    needs = (Needs(scalars=("loss",), why="to see whether it is zero"),)

    steps: int = parameter(20, help="first steps that count", unit="steps", ge=2)
    threshold: float = parameter(1e-5, help="largest absolute loss that counts as zero", ge=0)

    seen: int = state(int)
    #: The step at which the task began, and the largest loss since.
    first: int = state(int)
    highest: float = state(float)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the last of the first steps."""
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN or loss is None or self.seen > self.steps:
            return
        self.first = self.first if self.seen else view.mode_step
        self.seen += 1
        self.highest = max(self.highest, abs(loss)) if math.isfinite(loss) else math.inf
        if self.seen != self.steps or self.highest > self.threshold or signals.resumed(view) or view.several:
            return
        yield self.finding(
            view,
            severity=Severity.WARNING if self.highest == 0 else Severity.INFO,
            subject="loss",
            tensors=[signals.loss_name(view) or "loss"],
            value=self.highest,
            limit=self.threshold,
            message=f"the loss is {'exactly zero' if self.highest == 0 else f'at most {self.highest:.2g}'} in each of "
            f"the first {self.steps} steps{f' of another task, from step {self.first} on' if view.task else ''}",
            symptoms=("loss_is_zero",),
            since=self.first,
        )
