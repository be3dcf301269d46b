"""LossNotDecreasing: the loss diverges, rises or does not fall."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import levels, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import loss_not_decreasing
from watchglass.stats import median
from watchglass.tables import StepView

#: Ratio above which a loss has clearly risen, after the first steps.
_CLEARLY = 4.0
#: Number of losses before the latest ones whose spread is the unit of a rise.
_EARLIER = 64


class LossNotDecreasing(Rule):
    """The training loss diverges, rises again, or does not fall at all.

    Looks at: the training loss at every step, the learning rate, the training accuracy.
    Fires when: the loss diverges: the median of the last five losses exceeds the loss of the first step and `diverged`
        times the median of the first losses (four times, after the first 16 steps). This is an `error` once it has held
        for `hopeless` steps, because an overshoot at the start can recover. Or the loss rises again: the medians of two
        windows of `window` steps in a row are more than twice that of the best window, and above a quarter of the
        start. Or the loss is flat: after `patience` windows it is less than `diff_percent` below its start, with more
        certainty than its noise allows. A loss that has been zero or below has no ratio, so its limits are `deviations`
        spreads of its earlier values: above its start it has diverged (an `error` only from a hundred times that on, in
        spreads of the first values). That far above its best window it rises again, if it has also lost half of its
        decrease. A loss that changes its sign (policy gradients, critics) need not fall. A flat loss is not reported
        while the learning rate warms up, after the loss has fallen, or in a resumed attempt. In a resumed attempt only
        `diverged` counts as divergence. For a model that is trained in turns with others (a generator, a student), only
        `diverged` counts, from the highest loss of its first window on.
    Usual causes: a learning rate that is too high or too low, no gradient in the first layers, labels that do not fit.
    What to try: try to overfit a single batch; change the learning rate by a factor of 10 either way.
    Costs: nothing in addition to the loss, which is recorded at every step.
    Source: every 10 steps, 0.1 percent, rise of 5 percent: SageMaker Debugger documentation; twice the lowest loss:
        TheDeepChecker; house: windows compared with regard to noise.
    """

    default = True
    needs = (Needs(scalars=("loss",), why="to follow the training loss"),)
    calibrations: ClassVar = {"sagemaker": loss_not_decreasing.LossNotDecreasing}

    window: int = parameter(50, help="steps whose losses are compared together", unit="steps", ge=4)
    patience: int = parameter(4, help="windows before a flat loss counts", unit="windows", ge=2)
    diff_percent: float = parameter(1.0, help="smallest decrease since the start", unit="percent", ge=0, le=100)
    diverged: float = parameter(20.0, help="loss over that of the start", unit="ratio", gt=1)
    deviations: float = parameter(20.0, help="rise of a loss without a ratio", unit="spreads", gt=0)
    hopeless: int = parameter(20, help="steps after which a diverged loss is an error", unit="steps", ge=1)

    start: list[float] = state(list)
    #: The least and the highest loss so far.
    lowest: float = state(lambda: math.inf)
    highest: float = state(lambda: -math.inf)
    seen: int = state(int)
    #: Highest loss of the first window.
    first_highest: float = state(lambda: -math.inf)
    buffer: list[float] = state(list)
    #: Median and standard error of the first and of the best window, and of the one before the latest.
    first: list[float] = state(list)
    best: list[float] = state(list)
    rising: int = state(int)
    #: Steps in a row at which the loss had diverged.
    beyond: int = state(int)
    windows: int = state(int)
    waiting: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most two findings at a TRAIN step."""
        loss = signals.loss(view) if view.mode is Mode.TRAIN else None
        if loss is None or not math.isfinite(loss):
            return
        self.seen += 1
        self.lowest, self.highest = min(self.lowest, loss), max(self.highest, loss)
        finding = self._divergence(view)
        if finding is not None:
            yield finding
        signals.remember_start(self.start, loss, 8)
        if self.seen <= self.window:
            self.first_highest = max(self.first_highest, loss)
        self.buffer.append(loss)
        self.waiting = self.waiting or signals.warming_up(view)
        if len(self.buffer) >= self.window:
            yield from self._window_ended(view)

    def _divergence(self, view: StepView) -> Finding | None:
        """A finding if recent losses are far above the first ones, also within the first steps."""
        if not self.start or self.seen < 3:
            return None
        turns = view.in_turns
        if turns and self.seen <= self.window:
            return None
        # The loss of a model that learns from another one (a student, a critic) has no level before that has one.
        start = [self.first_highest] if turns else self.start
        count = min(5, self.seen - 1)
        earlier = signals.losses(view, _EARLIER + count)
        recent, earlier = earlier[-count:].tolist(), earlier[:-count].tolist()
        now = median(recent)
        rise = levels.rise(start, now, lowest=self.lowest, before=[*self.start, *earlier] if turns else earlier)
        # A loss that fell at once and then varies near zero has not diverged.
        diverged = rise.reaches(self.diverged, self.deviations) and now > self.start[0]
        self.beyond = self.beyond + 1 if diverged else 0
        # The smaller limit needs more evidence: a few high losses are common right after the start.
        # In a resumed run the loss is low, so that multiples of it are soon reached.
        # And one model may gain what another loses: the loss of a generator rises in a healthy run.
        unclear = self.seen < 16 or signals.resumed(view) or turns
        if not diverged and (unclear or rise.times is None or rise.times < _CLEARLY or now <= self.start[0]):
            return None
        certain = levels.rise(self.start, now, lowest=self.lowest).reaches(self.diverged, 100 * self.deviations)
        over = f"over the last {count} steps up to step {view.mode_step}"
        return self.finding(
            view,
            severity=Severity.ERROR if certain and self.beyond >= self.hopeless else Severity.WARNING,
            subject="divergence",
            tensors=[signals.loss_name(view) or "loss"],
            value=now,
            limit=self._limit(rise, diverged=diverged),
            message=f"the loss has diverged: {now:.3g} in the median {over}, {rise.words}",
            symptoms=("loss_diverged",),
            evidence=signals.evidence(view),
        )

    def _limit(self, rise: levels.Rise, *, diverged: bool) -> float:
        """The limit that the loss has crossed."""
        if rise.times is not None:
            return rise.level * (self.diverged if diverged else _CLEARLY)
        return rise.level + self.deviations * (rise.now - rise.level) / rise.spreads

    def _window_ended(self, view: StepView) -> Iterable[Finding]:
        losses, waiting = np.array(self.buffer), self.waiting
        self.buffer, self.waiting = [], False
        now = [float(np.median(losses)), _standard_error(losses)]
        if not self.first:
            self.first = self.best = now
            return
        # Windows during warm-up do not count.
        self.windows += 0 if waiting else 1
        self.rising = self.rising + 1 if self._risen(losses, now) else 0
        self.best = min(self.best, now)
        if self.rising >= 2 and not view.in_turns:
            yield self._finding(
                view, "rise", now[0], self._rise_limit(losses), "loss_rising",
                f"the loss rises again: {now[0]:.3g} in the median over the last {self.window} steps up to step "
                f"{view.mode_step}, after {self.best[0]:.3g} at best",
            )  # fmt: skip
        elif self.windows >= self.patience - 1 and not waiting and self._flat(view, now):
            yield self._finding(
                view, "flat", now[0], self.first[0] * (1 - self.diff_percent / 100), "loss_flat",
                f"the loss does not fall: {now[0]:.4g} in the median over the last {self.window} steps up to step "
                f"{view.mode_step}, {self.first[0]:.4g} over the first",
            )  # fmt: skip

    def _risen(self, losses: npt.NDArray[np.float64], now: list[float]) -> bool:
        """Whether a window lies far above the best one."""
        above = now[0] - self.best[0]
        if above <= 3 * (now[1] + self.best[1]):
            return False
        if self.lowest > 0:
            return now[0] > self._rise_limit(losses) and now[0] > 0.25 * float(np.median(self.start))
        return now[0] > self._rise_limit(losses) and above > 0.5 * (
            levels.level(self.start, lowest=self.lowest) - self.best[0]
        )

    def _rise_limit(self, losses: npt.NDArray[np.float64]) -> float:
        """The limit above which a window has risen: twice the best one, or `deviations` spreads above it."""
        if self.lowest > 0:
            return 2 * self.best[0]
        return self.best[0] + self.deviations * max(levels.spread(self.start), levels.spread(losses.tolist()))

    def _flat(self, view: StepView, now: list[float]) -> bool:
        """Whether the loss has not fallen, by more than its noise, and that is a fault."""
        if view.in_turns or _accurate(view) or signals.resumed(view):
            return False
        if self.lowest < 0 < self.highest:
            return False
        scale = abs(self.first[0])
        # The first losses matter too: a run can converge within its first window.
        began = max(self.first[0], float(np.median(self.start)))
        decrease = min(began - now[0], began - self.best[0])
        noise = 2 * math.hypot(now[1], self.first[1])
        return decrease < scale * self.diff_percent / 100 and (noise < 0.05 * scale or self.windows >= 20)

    def _finding(self, view: StepView, subject: str, value: float, limit: float, symptom: str, message: str) -> Finding:
        return self.finding(
            view, severity=Severity.WARNING, subject=subject, tensors=[signals.loss_name(view) or "loss"],
            value=value, limit=limit, message=message, symptoms=(symptom,),
            evidence=signals.evidence(view),
        )  # fmt: skip


def _standard_error(losses: npt.NDArray[np.float64]) -> float:
    """Standard error of the median, from the median absolute deviation (1.4826 for a normal distribution)."""
    return 1.2533 * levels.spread(losses.tolist()) / math.sqrt(len(losses))


def _accurate(view: StepView) -> bool:
    """Whether nearly every sample is classified correctly: then the loss cannot fall much."""
    accuracy = view.series("accuracy", Mode.TRAIN, 16)
    return len(accuracy) > 0 and float(np.median(accuracy)) >= 0.95
