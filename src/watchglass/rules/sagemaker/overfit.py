"""Overfit as SageMaker Debugger documents it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView, Stretch


class Overfit(Rule):
    """The validation loss lies above the training loss.

    Looks at: the mean loss of each evaluation, and the mean training loss since the previous one.
    Fires when: in `patience` evaluations in a row the difference exceeds `ratio_threshold` times the training loss.
    Usual causes: too little data, a model that is too large, training for too long.
    What to try: augment the data, weight decay, dropout.
    Costs: nothing in addition to the losses of training and evaluation.
    Source: SageMaker Debugger documentation.
    """

    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), why="to follow the validation loss"),
    )

    start_step: int = parameter(0, help="training steps before which nothing is compared", unit="steps", ge=0)
    patience: int = parameter(1, help="evaluations in a row", unit="evaluations", ge=1)
    ratio_threshold: float = parameter(0.1, help="gap over the training loss", unit="ratio", ge=0)

    train: list[float] = state(list)
    above: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the first step after an evaluation."""
        for stretch in view.stretches:
            yield from self._stretch(view, stretch)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The same for an evaluation at the end."""
        return self.check(view)

    def _stretch(self, view: StepView, stretch: Stretch) -> Iterable[Finding]:
        names = ["loss", *sorted(info.name for info in view.catalog if info.role is Role.LOSS)]
        loss = next((stretch.means[name] for name in names if name in stretch.means), math.nan)
        if stretch.mode is Mode.TRAIN:
            self.train = [loss] if math.isfinite(loss) else []
        elif self.train and self.train[0] and math.isfinite(loss) and stretch.train_step >= self.start_step:
            gap = (loss - self.train[0]) / abs(self.train[0])
            if self.above.follow(stretch.train_step, gap > self.ratio_threshold) >= self.patience:
                yield self.finding(
                    view,
                    subject="validation loss",
                    tensors=["loss"],
                    value=gap,
                    limit=self.ratio_threshold,
                    message=f"the validation loss is {loss:.3g} after training step {stretch.train_step}, the training "
                    f"loss {self.train[0]:.3g}",
                    symptoms=("validation_rises",),
                    evidence=signals.optimizer_evidence(view),
                    since=self.above.since() if view.mode is Mode.TRAIN else None,
                )
