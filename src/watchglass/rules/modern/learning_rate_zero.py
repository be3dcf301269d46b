"""LearningRateZero: a learning rate of zero."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView


class LearningRateZero(Rule):
    """The learning rate of all groups is exactly zero.

    Looks at: the learning rates of all groups.
    Fires when: the highest of them is exactly zero for `zero_steps` training steps in a row. At the end of a schedule
        that has decayed to zero, it is an `info` if these steps are less than a tenth of the run.
    Usual causes: a schedule that is over, a warm-up that stays at zero, a rate of 0 in a configuration.
    What to try: check the schedule, and the learning rate that the optimizer was made with.
    Costs: nothing: learning rates are recorded at every step.
    Source: exact; house: `zero_steps`.
    """

    needs = (Needs(scalars=("learning_rate", "learning_rate/0"), why="to follow the learning rate"),)
    modes = (Mode.TRAIN,)

    zero_steps: int = parameter(8, help="training steps in a row with a rate of zero", unit="steps", ge=2)

    zeros: Streaks = state(Streaks)
    steps: int = state(int)
    highest: float = state(float)
    #: Steps since the last one whose rate was recorded.
    unknown: int = state(int)

    applicable = staticmethod(signals.without_layers)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step."""
        self.steps += view.covers
        self.unknown += view.covers
        rates = [value for name, value in view.scalars().items() if name.partition("/")[0] == "learning_rate"]
        if not rates:
            return
        self.highest = max(self.highest, *rates)
        zeros = self.zeros.follow(view.mode_step, max(rates) == 0, covers=self.unknown)
        self.unknown = 0
        if zeros < self.zero_steps:
            return
        planned = view.latest_fact(facts.PlannedSteps)
        total = planned.steps if planned is not None else None
        over = self.highest > 0 and 10 * (self.steps - zeros) >= 9 * max(total or 0, self.steps)
        yield self.finding(
            view,
            severity=Severity.INFO if over else Severity.WARNING,
            subject="zero",
            value=0.0,
            limit=0.0,
            message=f"the learning rate has been exactly zero for {zeros} training steps, up to step "
            f"{view.mode_step}: nothing is learned",
            symptoms=("learning_rate_is_zero",),
            evidence={"highest_learning_rate": self.highest},
            since=self.zeros.since(),
        )
