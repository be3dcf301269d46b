"""LossNotDecreasing as SageMaker Debugger documents it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class LossNotDecreasing(Rule):
    """The loss has not decreased enough since the loss `num_steps` before.

    Looks at: the loss, every `num_steps` steps.
    Fires when: compared with the newest loss that is at least `num_steps` older, it has decreased by less than
        `diff_percent`, or increased by more than `increase_threshold_percent`. It is compared again `num_steps` later.
    Usual causes: a learning rate that is too high or too low.
    What to try: change the learning rate by a factor of 10 either way.
    Costs: nothing in addition to the loss.
    Source: SageMaker Debugger documentation.
    """

    needs = (Needs(scalars=("loss",), why="to follow the loss"),)

    num_steps: int = parameter(10, help="steps between two comparisons", unit="steps", ge=1)
    diff_percent: float = parameter(0.1, help="smallest decrease", unit="percent", ge=0)
    increase_threshold_percent: float = parameter(5.0, help="largest increase", unit="percent", ge=0)
    mode: str = parameter("GLOBAL", help="mode of the steps", choices=("TRAIN", "EVAL", "GLOBAL"))

    #: Step and loss since the one that was compared with last, oldest first.
    recent: list[list[float]] = state(list)
    #: Step of the last comparison, that of the first loss before there was one.
    compared: int = state(lambda: -1)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding, every `num_steps` steps."""
        everywhere = self.mode == "GLOBAL"
        loss = signals.loss(view) if everywhere or view.mode.name == self.mode else None
        if loss is None or not math.isfinite(loss):
            return
        step = view.global_step if everywhere else view.mode_step
        self.recent.append([step, loss])
        if self.compared < 0:
            self.compared = step
        if step - self.compared < self.num_steps:
            return
        self.compared = step
        old = [value for at, value in self.recent if at <= step - self.num_steps][-1]
        self.recent = [each for each in self.recent if each[0] > step - self.num_steps]
        change = 100 * (loss - old) / abs(old) if old else 0.0
        rises = change > 0
        if change > self.increase_threshold_percent if rises else -change < self.diff_percent:
            yield self.finding(
                view,
                subject="loss",
                tensors=[signals.loss_name(view) or "loss"],
                value=change,
                limit=self.increase_threshold_percent if rises else -self.diff_percent,
                message=f"the loss is {loss:.4g} at step {view.mode_step}, after {old:.4g} at least {self.num_steps} "
                "steps before",
                symptoms=("loss_rising" if rises else "loss_flat",),
                evidence=signals.evidence(view),
            )
