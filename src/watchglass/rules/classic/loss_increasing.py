"""LossIncreasing: the training loss diverges, or rises from the start, or rises again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import course, learning_rates, levels, signals
from watchglass.rules.graph.terms import remember_summed, without_level
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.stats import median
from watchglass.tables import StepView

#: Ratio above which a loss has clearly risen, after the first steps.
_CLEARLY = 4.0
#: Number of losses before the latest ones whose spread is the unit of a rise.
_EARLIER = 64
#: Ratio to the start that no loss reaches by a start near zero.
_DIVERGED_FOR_SURE = 1e4
#: Steps for which a first overshoot may last, and the ratio to the start from which on it is none.
_OVERSHOOT, _BEYOND_RECOVERY = 5, 200.0
#: Losses from which on the spread of a loss without a ratio is known (house).
_SPREAD_KNOWN = 16
#: Standard errors between two windows that are certainly different.
_CERTAIN = 6.0
#: Standard errors by which a window lies below the highest one since the best where the loss falls.
_FALLING = 3.0


class LossIncreasing(Rule):
    """The training loss diverges, rises from the start, or rises again after it had fallen.

    Looks at: the training loss at every step, also in windows that widen with the length of the run; what the loss
        functions returned, and the elements that they sum; the learning rate, clipping, and the ratio of updates to
        weights.
    Fires when: one of these holds. Only the first one counts in a resumed attempt, and for a model that acts between
        its updates (reinforcement learning). For a model that is trained in turns with others (a generator, a student),
        only the first counts, measured from the highest loss of its first `settling` steps. A loss that has been zero
        or below has no ratio, so its limits are `deviations` spreads of at least 16 values. A sum over a number of
        elements that grows at some steps (a policy gradient over episodes) has no level, so only the last counts.
        A stage in which other parameters are trained, or another optimizer trains them, is followed from its own start.
        If its loss goes on from that of the stage before, it must also leave the spread that the losses had there.
        * The loss diverges: the median of the last five losses exceeds the loss of the first step, and `diverged` times
        the median of the first losses (after 16 steps, four times that median is enough). This is an `error` once it
        has held for `hopeless` steps, because an overshoot at the start can recover. It is an `info` if the loss may
        have started near zero by chance.
        * The loss has risen from the start, by `rise` times the start, and was never below it. For a classification,
        which starts at guessing, a tenth of that rise is enough.
        * The loss rises again: two windows in a row lie above twice the best one, further above it than neighbouring
        losses differ, above a quarter of the start, and not below the highest window since then.
        * The objective is the negative of the loss function's result, and this result grows.
    Usual causes: a learning rate that is too high, no warm-up, a loss with the wrong sign.
    What to try: lower the learning rate, warm it up, clip the gradient norm; check the sign of the loss.
    Costs: nothing in addition to the loss, which is recorded at every step.
    Source: twice the lowest loss: TheDeepChecker; house: windows compared with regard to noise.
    """

    starts_with = "stage"
    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), optional=True, why="to see how large updates are"),
        Needs(role=Role.WEIGHT, statistics=("rms",), optional=True, why="to compare updates with weights"),
        Needs(facts=("loss_graph",), optional=True, why="to see over how many elements the loss is summed"),
    )

    diverged: float = parameter(20.0, help="loss over that of the start", unit="ratio", gt=1)
    deviations: float = parameter(20.0, help="rise of a loss without a ratio", unit="spreads", gt=0)
    hopeless: int = parameter(20, help="steps after which a diverged loss is an error", unit="steps", ge=1)
    rise: float = parameter(1.0, help="rise from the start, as a share of it", unit="ratio", gt=0)
    settling: int = parameter(50, help="first steps of a model that is trained in turns", unit="steps", ge=1)

    start: list[float] = state(list)
    lowest: float = state(lambda: math.inf)
    highest: float = state(lambda: -math.inf)
    first_highest: float = state(lambda: -math.inf)
    seen: int = state(int)
    course: dict[str, Any] = state(course.empty)
    ratios: list[float] = state(list)
    #: Windows in a row that lay above the best one; steps in a row at which the loss had diverged.
    rising: Streaks = state(Streaks)
    beyond: Streaks = state(Streaks)
    #: Evaluations of the model without a loss.
    acted: int = state(int)
    #: At captured steps in a row at which the loss was minus what a function returned: first and last value, number.
    negated: list[float] = state(list)
    #: See :func:`watchglass.rules.graph.terms.remember_summed`.
    summed: list[int] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most three findings at a TRAIN step."""
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN:
            self.acted += loss is None
        if view.mode is not Mode.TRAIN or loss is None or not math.isfinite(loss):
            return
        self.seen += 1
        self.lowest, self.highest = min(self.lowest, loss), max(self.highest, loss)
        learning_rates.remember_ratio(self.ratios, view)
        remember_summed(self.summed, view)
        yield from self._negation(view, loss)
        yield from self._divergence(view)
        signals.remember_start(self.start, loss, 8)
        if self.seen <= self.settling:
            self.first_highest = max(self.first_highest, loss)
        if course.follow(self.course, loss):
            yield from self._windows(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement, on a run of any length."""
        yield from self._windows(view)

    def _negation(self, view: StepView, loss: float) -> Iterable[Finding]:
        parts = {name: value for name, value in view.scalars(Role.LOSS).items() if name.startswith("loss/")}
        for name, value in parts.items():
            if loss < 0 < value and math.isclose(loss, -value, rel_tol=1e-3):
                self.negated = [self.negated[0] if self.negated else value, value, (self.negated[2:] or [0])[0] + 1]
                first, _, times = self.negated
                if times < 4 or value < 1.1 * first or view.several:
                    return
                function = name.removeprefix("loss/")
                yield self.finding(
                    view, severity=Severity.ERROR, subject="sign", tensors=[name], value=value, limit=first,
                    message=f"the optimizer minimises minus {function}: {function} has grown from {first:.3g} to "
                    f"{value:.3g} at step {view.mode_step}",
                    symptoms=("loss_negated",), evidence=signals.evidence(view),
                )  # fmt: skip
                return
        if parts:
            self.negated = []

    def _divergence(self, view: StepView) -> Iterable[Finding]:
        """A finding if recent losses are far above the first ones, also within the first steps."""
        turns = view.in_turns
        few = self.seen < (_SPREAD_KNOWN if self.lowest <= 0 else 3)
        if not self.start or few or without_level(self.summed) or (turns and self.seen <= self.settling):
            return
        # The loss of a model that learns from another one (a student, a critic) has no level before that has one.
        start = [self.first_highest] if turns else self.start
        count = min(5, self.seen - 1)
        earlier = signals.losses(view, _EARLIER + count)
        recent, earlier = earlier[-count:].tolist(), earlier[:-count].tolist()
        now = median(recent)
        if self._as_before(view, now):
            return
        rise = levels.rise(start, now, lowest=self.lowest, before=[*self.start, *earlier] if turns else earlier)
        # A loss that fell at once and then varies near zero has not diverged.
        diverged = rise.reaches(self.diverged, self.deviations) and now > self.start[0]
        beyond = self.beyond.follow(view.mode_step, diverged, covers=view.covers)
        # The smaller limit needs more evidence: a few high losses are common right after the start.
        # In a resumed run the loss is low, so that multiples of it are soon reached.
        # And one model may gain what another loses: the loss of a generator rises in a healthy run.
        unclear = self.seen < 16 or self._moves(view) or turns
        if not diverged and (unclear or rise.times is None or rise.times < _CLEARLY or now <= self.start[0]):
            return
        # An overshoot in the first steps recovers within a few.
        if diverged and beyond < _OVERSHOOT and (rise.times is None or rise.times < _BEYOND_RECOVERY):
            return
        certain = levels.rise(self.start, now, lowest=self.lowest).reaches(self.diverged, 100 * self.deviations)
        if rise.times is not None:
            limit = rise.level * (self.diverged if diverged else _CLEARLY)
        else:
            limit = rise.level + self.deviations * (rise.now - rise.level) / rise.spreads
        yield self._finding(
            view, "divergence", now, limit, "loss_diverged",
            f"the loss has diverged: {now:.3g} in the median over the last {count} losses up to step {view.mode_step}, "
            f"{rise.words}",
            self.beyond.since(), measured=rise.evidence,
            severity=Severity.INFO if self._calm(view, rise)
            else Severity.ERROR if certain and beyond >= self.hopeless else Severity.WARNING,
        )  # fmt: skip

    def _windows(self, view: StepView) -> Iterable[Finding]:
        found = course.windows(self.course)
        if len(found) < 3 or view.in_turns or self._moves(view) or without_level(self.summed):
            return
        first, best, now = found[0], min(found), found[-1]
        newest = signals.losses(view, _EARLIER).tolist()
        # Without one, the loss has been NaN for so long that the last windows are not about the present.
        if not newest or self._as_before(view, now.value):
            return
        # A rise by no more than neighbouring losses differ is none.
        spread = levels.spread(newest)
        unit = max(levels.spread(self.start), spread, now.error * 4)
        above = self.deviations * unit if self.lowest <= 0 else math.inf
        began = levels.level(self.start, lowest=self.lowest)
        limit = best.value + (max(best.value, spread) if self.lowest > 0 else above)
        risen = now.value > limit and now.above(best) > _CERTAIN
        half = 0.25 * median(self.start) if self.lowest > 0 else best.value + 0.5 * (began - best.value)
        # A loss that falls since it jumped (other data, another phase) is being learned.
        falling = max(found[found.index(best) :]).above(now) > _FALLING
        if self.rising.follow(view.mode_step, risen and now.value > half and not falling) >= 2 and best is not first:
            yield self._finding(
                view, "rise", now.value, limit, "loss_rising",
                f"the loss rises again: {now.value:.3g} at step {view.mode_step}, after {best.value:.3g} at best",
                self.rising.since(), measured={"best": best.value},
            )  # fmt: skip
            return
        share = self.rise * (0.1 if view.scalar("accuracy") is not None else 1.0)
        limit = began * (1 + share) if self.lowest > 0 else began + above
        if (
            now.value > limit
            and now.above(first) > _CERTAIN
            and best.above(first) > -3
            and not falling
            and found[-2].value > first.value
        ):
            yield self._finding(
                view, "trend", now.value, limit, "loss_rises_from_start",
                f"the loss has risen from the start: {now.value:.3g} at step {view.mode_step}, after {began:.3g}",
                measured={"began": began},
            )  # fmt: skip

    def _as_before(self, view: StepView, now: float) -> bool:
        """Whether a loss is usual for the stage before, from which this one goes on."""
        left = view.history.left_at
        return left is not None and now <= left[0] + levels.CERTAIN * left[1]

    def _calm(self, view: StepView, rise: levels.Rise) -> bool:
        """Whether the loss may have started near zero by chance, as that of a value network.

        Updates of usual size, of an optimizer that limits them, do not diverge.
        """
        started_low = rise.times is not None and rise.times < _DIVERGED_FOR_SURE and signals.classes(view) is None
        return (
            started_low
            and learning_rates.adaptive(view)
            and "updates_moderate" in learning_rates.symptoms(view, self.ratios)
        )

    def _moves(self, view: StepView) -> bool:
        """Whether the level of the loss may change for other reasons than the weights: what it learns from changes."""
        return signals.resumed(view) or 2 * self.acted >= self.seen or self.lowest < 0 < self.highest or view.several

    def _finding(
        self, view: StepView, subject: str, value: float, limit: float, symptom: str, message: str,
        since: int | None = None, severity: Severity = Severity.WARNING, *, measured: Mapping[str, float],
    ) -> Finding:  # fmt: skip
        jump = learning_rates.jump(view)
        return self.finding(
            view, severity=severity, subject=subject, tensors=[signals.loss_name(view) or "loss"],
            value=value, limit=limit, message=jump.then(message) if jump else message,
            symptoms=(symptom, *learning_rates.symptoms(view, self.ratios), *(("rate_jumped",) if jump else ())),
            evidence={
                **signals.evidence(view), **measured, **learning_rates.evidence(self.ratios),
                **(jump.evidence if jump else {}),
            },
            since=since,
        )  # fmt: skip
