"""Overtraining as SageMaker Debugger documents it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class Overtraining(Rule):
    """The training loss or the validation loss has not improved for long.

    Looks at: the loss of each step, of training and of evaluation.
    Fires when: the training loss has not improved by `delta` in `patience_train` steps, or the validation loss in
        `patience_validation` steps.
    Usual causes: a run that is longer than it needs to be.
    What to try: stop at the best evaluation.
    Costs: nothing in addition to the losses of training and evaluation.
    Source: SageMaker Debugger documentation.
    """

    needs = (Needs(scalars=("loss",), why="to follow the loss"),)

    patience_train: int = parameter(5, help="training steps without an improvement", unit="steps", ge=1)
    patience_validation: int = parameter(10, help="evaluation steps without an improvement", unit="steps", ge=1)
    delta: float = parameter(0.01, help="improvement that counts", ge=0)

    best: dict[str, float] = state(dict)
    without: dict[str, int] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding while a loss does not improve."""
        loss, mode = signals.loss(view), view.mode.name
        if loss is None or not math.isfinite(loss) or view.mode not in (Mode.TRAIN, Mode.EVAL):
            return
        improved = loss < self.best.get(mode, math.inf) - self.delta
        self.without[mode] = 0 if improved else self.without.get(mode, 0) + view.covers
        self.best[mode] = loss if improved else self.best.get(mode, loss)
        patience = self.patience_train if view.mode is Mode.TRAIN else self.patience_validation
        if self.without[mode] >= patience:
            whose = "training" if view.mode is Mode.TRAIN else "validation"
            yield self.finding(
                view,
                subject=whose,
                tensors=[signals.loss_name(view) or "loss"],
                value=float(self.without[mode]),
                limit=float(patience),
                message=f"the {whose} loss has not improved by {self.delta:g} in {self.without[mode]} steps",
                what_to_try=["Stop at the best evaluation"],
            )
