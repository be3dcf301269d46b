"""Overtraining: the run continues although its losses no longer improve."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, count
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import overtraining
from watchglass.tables import StepView, Stretch


class Overtraining(Rule):
    """The run continues although neither the training loss nor the validation loss improves.

    Looks at: the mean loss of each evaluation, and the mean training loss since the previous one.
    Fires when: in `patience` evaluations in a row, and in at least half of all evaluations, neither loss was lower than
        its best value by `delta` times that value. It is an `info`: such a run is long, not broken.
    Usual causes: a run that is longer than it needs to be, a learning rate that is not lowered.
    What to try: stop at the best evaluation, lower the learning rate on a plateau.
    Costs: nothing in addition to the losses of training and evaluation.
    Source: patience of 5 and 10, delta of 0.01: SageMaker Debugger documentation; house: both losses together.
    """

    starts_with = "task"
    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), why="to follow the validation loss"),
    )
    calibrations: ClassVar = {"sagemaker": overtraining.Overtraining}

    patience: int = parameter(10, help="evaluations in a row without an improvement", unit="evaluations", ge=1)
    delta: float = parameter(0.01, help="improvement that counts, as a share of the best loss", unit="ratio", ge=0)

    #: The best training and validation loss; the number of evaluations, in all and since the last improvement.
    best: dict[str, float] = state(dict)
    evaluations: int = state(int)
    without: int = state(int)
    improved: bool = state(bool)
    last_step: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the first step after an evaluation."""
        for stretch in view.stretches:
            yield from self._stretch(view, stretch)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The same for an evaluation at the end."""
        return self.check(view)

    def _stretch(self, view: StepView, stretch: Stretch) -> Iterable[Finding]:
        loss, name = stretch.means.get("loss", math.nan), stretch.mode.name
        if not math.isfinite(loss):
            return
        best = self.best.get(name, math.inf)
        if loss < best - self.delta * abs(best if math.isfinite(best) else 0.0):
            self.best[name], self.improved, self.last_step = loss, True, stretch.train_step
        if stretch.mode is not Mode.EVAL:
            return
        self.evaluations += 1
        self.without = 0 if self.improved else self.without + 1
        self.improved = False
        if self.without >= self.patience and 2 * self.without >= self.evaluations:
            yield self.finding(
                view, severity=Severity.INFO, subject="loss", tensors=["loss"],
                value=float(self.without), limit=float(self.patience),
                message=f"neither training nor validation loss has improved by {100 * self.delta:g} % in "
                f"{count(self.without, 'evaluation')}, since training step {self.last_step}",
                since=self.last_step if view.mode is Mode.TRAIN else None,
                what_to_try=["Stop at the best evaluation, or lower the learning rate on a plateau"],
            )  # fmt: skip
