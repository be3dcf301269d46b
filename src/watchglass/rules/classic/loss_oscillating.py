"""LossOscillating: the loss goes up and down instead of falling."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, in_percent
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class LossOscillating(Rule):
    """The training loss alternates from step to step, by much of its size.

    Looks at: the last `window` training losses, at the end of each such window.
    Fires when: their direction changes in more than `changes` of the steps, and the median change is more than
        `amplitude` times the median loss. Independent batches change direction in two thirds of the steps; updates that
        jump across a valley do in nearly all of them. The severity is `info`.
    Usual causes: a learning rate that is too high for the curvature, two kinds of batches in turns.
    What to try: lower the learning rate, or shuffle the batches.
    Costs: nothing in addition to the loss.
    Source: direction changes as a sign of oscillation: TheDeepChecker; house: the limits.
    """

    starts_with = "stage"
    needs = (Needs(scalars=("loss",), why="to follow the training loss"),)

    window: int = parameter(64, help="losses that are judged together", unit="steps", ge=8)
    changes: float = parameter(0.9, help="share of steps at which the direction changes", unit="ratio", gt=0, le=1)
    amplitude: float = parameter(0.2, help="median change over the median loss", unit="ratio", gt=0)

    seen: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the end of a window."""
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN or loss is None or not math.isfinite(loss):
            return
        self.seen += 1
        if self.seen % self.window:
            return
        losses = signals.losses(view, self.window)
        steps = np.diff(losses)
        turns = float(np.mean(steps[1:] * steps[:-1] < 0)) if len(steps) > 1 else 0.0
        usual, change = float(np.median(losses)), float(np.median(np.abs(steps))) if len(steps) else 0.0
        if turns > self.changes and usual > 0 and change > self.amplitude * usual:
            yield self.finding(
                view,
                severity=Severity.INFO,
                subject="loss",
                tensors=[signals.loss_name(view) or "loss"],
                value=turns,
                limit=self.changes,
                message=f"the loss alternates: over the last {self.window} losses up to step {view.mode_step} its "
                f"direction changed in {in_percent(turns)}, by {change:.3g} in the median of a loss of {usual:.3g}",
                symptoms=("loss_oscillates",),
                evidence={"usual": usual, "change": change, **signals.optimizer_evidence(view)},
            )
