"""SchedulerMisuse: a learning-rate scheduler that steps too often, too early or never."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules import signals
from watchglass.rules.modern.call_rounds import Round, rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Schedules that come back up when they are stepped beyond their end, and are not meant to.
_ROUND_TRIP = "CosineAnnealingLR"
#: What a schedule is called that an optimizer evaluates itself, at every update.
_OF_OPTIMIZER = "the optimizer's schedule"


class SchedulerMisuse(Rule):
    """The scheduler steps twice per update, never, or per batch although its schedule counts epochs.

    Looks at: the order of the optimizer's and the scheduler's steps, schedules that an optimizer evaluates itself (as
        those of Keras do), the learning rate, and the planned steps.
    Fires when: a scheduler that steps with every update brings the learning rate below `low` of its highest value
        within `early` of the run, for good; or takes a cosine schedule through `rounds` minima. Or it steps twice in a
        row for each update, in a run of one process. A scheduler that never steps over `rounds` evaluations, or that
        steps before the optimizer, is an `info`. Schedules with restarts, warm-up from zero and a decay at the end are
        not reported.
    Usual causes: scheduler.step() in the loop over batches of a schedule that counts epochs, or in both loops.
    What to try: step the schedule once per epoch, or make it for the number of batches.
    Costs: the fact calls, below a microsecond per call; learning rates cost nothing.
    Source: PyTorch documentation of torch.optim.lr_scheduler; house: all limits.
    """

    needs = (
        Needs(facts=("calls",), optional=True, why="to see when the scheduler steps"),
        Needs(scalars=("learning_rate", "learning_rate/0"), why="to follow the learning rate"),
    )

    early: float = parameter(0.2, help="share of the run before which a schedule should not end", unit="ratio", gt=0)
    low: float = parameter(0.01, help="share of the highest rate below which a schedule has ended", unit="ratio", gt=0)
    rounds: int = parameter(3, help="minima of a cosine, or evaluations without a step", ge=1)
    patience: int = parameter(8, help="training steps after which an order of calls is judged", unit="steps", ge=1)

    #: Highest rate, the step since which it is below `low` of that, -1 for not, and how many minima there were.
    highest: float = state(float)
    over_since: int = state(lambda: -1)
    minima: int = state(int)
    first_minimum: int = state(lambda: -1)
    steps: int = state(int)
    evaluations: int = state(int)
    #: Schedulers that step with every update, twice with every update, and before it, by name: since which step.
    each: dict[str, int] = state(dict)
    twice: dict[str, int] = state(dict)
    ahead: dict[str, int] = state(dict)
    #: Schedulers that have not stepped at all; types of all by name.
    still: list[str] = state(list)
    types: dict[str, str] = state(dict)

    def applicable(self, view: StepView) -> str:
        """Not for models without layers, and not without a scheduler."""
        unscheduled = (
            "" if self.types or view.latest_fact(facts.Calls) is None else "no learning-rate scheduler was seen"
        )
        return signals.without_layers(view) or unscheduled

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding of each kind at a TRAIN step."""
        for fact in view.facts(facts.Calls):
            self._take(view, fact)
        for settings in view.facts(facts.OptimizerSettings):
            if (schedule := settings.setting("schedule")) is not None:
                self.types[_OF_OPTIMIZER] = schedule
                self.each.setdefault(_OF_OPTIMIZER, view.model_step)
        self.evaluations += sum(stretch.mode is Mode.EVAL for stretch in view.stretches)
        if view.mode is not Mode.TRAIN:
            return
        self.steps += view.covers
        yield from self._order(view)
        rate = _rate(view)
        if rate is not None:
            self._follow(view, rate)
            planned = view.latest_fact(facts.PlannedSteps)
            steps = planned.steps if planned is not None else None
            if steps is not None and steps > self.steps:
                yield from self._over(view, steps)
            yield from self._cosine(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement of the schedule."""
        yield from self._over(view, view.model_step + 1 if view.mode is Mode.TRAIN else self.steps)

    def _take(self, view: StepView, fact: facts.Calls) -> None:
        schedulers = fact.objects_of("scheduler")
        self.types.update((name, str(row.type)) for name, row in schedulers.items())
        self.still = [name for name, row in schedulers.items() if row.observed is True and row.stepped is False]
        found = rounds_of(fact)
        alone = fact.processes == 1
        for name, row in schedulers.items():
            own = [each for each in found if f"{row.optimizer}.step" in each.calls]
            if own:
                optimizer = f"{row.optimizer}.step"
                self._habit(view, self.each, name, all(f"{name}.step" in each.calls for each in own))
                doubled = alone and all(_doubled(each, f"{name}.step") for each in own)
                self._habit(view, self.twice, name, doubled)
                ahead = all(_ahead(each, f"{name}.step", optimizer) for each in own)
                self._habit(view, self.ahead, name, ahead)

    def _habit(self, view: StepView, habit: dict[str, int], name: str, now: bool) -> None:
        if now:
            habit.setdefault(name, view.model_step)
        else:
            habit.pop(name, None)

    def _order(self, view: StepView) -> Iterable[Finding]:
        for name, since in self.twice.items():
            if view.model_step - since >= self.patience:
                message = f"{name} ({self.types.get(name)}) steps more than once in a row for each update"
                yield self._misused(
                    view, name, f"{message}, up to step {view.mode_step}", symptoms=("scheduler_steps_twice",)
                )
        for name, since in self.ahead.items():
            if view.model_step - since >= self.patience:
                message = (
                    f"{name} ({self.types.get(name)}) steps before the optimizer: the first learning rate is skipped"
                )
                yield self._misused(
                    view, f"{name} ahead", message, symptoms=("scheduler_out_of_order",), severity=Severity.INFO
                )
        if self.still and self.evaluations >= self.rounds:
            name = self.still[0]
            message = f"{name} ({self.types.get(name)}) has not stepped in {self.evaluations} rounds of training"
            yield self._misused(
                view, f"{name} still", message, symptoms=("scheduler_out_of_order",), severity=Severity.INFO
            )

    def _follow(self, view: StepView, rate: float) -> None:
        self.highest = max(self.highest, rate)
        if self.highest and rate < self.low * self.highest:
            if self.over_since < 0:
                self.over_since = self.steps - 1
        elif self.over_since >= 0 and rate > 0.5 * self.highest:
            self.over_since, self.minima = -1, self.minima + 1
            if self.first_minimum < 0:
                self.first_minimum = self.steps

    def _over(self, view: StepView, total: int) -> Iterable[Finding]:
        since = self.over_since
        rested = self.steps - since >= max(since, 32)
        if since < 0 or since > self.early * total or not rested or not self.each or not self.highest:
            return
        name = next(iter(self.each))
        message = (
            f"{name} ({self.types.get(name)}) steps with every update: it brought the learning rate from "
            f"{self.highest:.3g} below {self.low:.3g} of that by step {since}, and the run has {total:,} steps"
        )
        yield self._misused(
            view,
            "over",
            message,
            symptoms=("schedule_over_early",),
            value=since / total,
            limit=self.early,
            low=self.low,
            total=total,
        )

    def _cosine(self, view: StepView) -> Iterable[Finding]:
        cosine = [name for name in self.each if self.types.get(name) == _ROUND_TRIP]
        # Two minima for three evaluations: a cosine that goes round with the epochs may be intended.
        if self.minima < max(self.rounds, 2 * self.evaluations / 3) or not cosine:
            return
        message = (
            f"{cosine[0]} ({_ROUND_TRIP}) steps with every update, and took the learning rate to its minimum and back "
            f"{self.minima} times in {self.steps} steps: the first minimum was before step {self.first_minimum}"
        )
        yield self._misused(
            view,
            "cosine",
            message,
            symptoms=("schedule_over_early",),
            value=float(self.minima),
            limit=float(self.rounds),
        )

    def _misused(
        self, view: StepView, subject: str, message: str, symptoms: tuple[str, ...],
        severity: Severity = Severity.WARNING, value: float | None = None, limit: float | None = None,
        **measured: float,
    ) -> Finding:  # fmt: skip
        return self.finding(
            view,
            severity=severity,
            subject=subject,
            message=message,
            symptoms=symptoms,
            value=value,
            limit=limit,
            evidence=measured,
        )


def _rate(view: StepView) -> float | None:
    """The highest learning rate of all groups at this step; None where none was recorded."""
    rates = [value for name, value in view.scalars().items() if name.partition("/")[0] == "learning_rate"]
    return max(rates) if rates else None


def _doubled(each: Round, step: str) -> bool:
    """Whether a scheduler steps twice with nothing in between."""
    return any(a == b == step for a, b in zip(each.calls, each.calls[1:], strict=False))


def _ahead(each: Round, step: str, optimizer: str) -> bool:
    return step in each.calls and each.calls.index(step) < each.calls.index(optimizer)
