"""LossNotDecreasing: the loss diverges, rises or stays where it was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.run import StepView
from watchglass.stats import median


class LossNotDecreasing(Rule):
    """The training loss diverges, rises again, or does not fall at all.

    Looks at: the training loss at every step, the learning rate, the training accuracy.
    Fires when: the median of the last five losses exceeds `diverged` times the first ones (from four times on after
        the first 16 steps); an error once that has held for `hopeless` steps, for an overshoot at the start can come
        back; or the median of two windows of `window` steps in a row is more than twice that of the best
        window and above a quarter of the start; or after `patience` windows the loss is less than `diff_percent` below
        its start, more certainly than its noise allows. Silent while the learning rate warms up, and once the loss has
        fallen (convergence is no fault). Of a model that is trained in turns with others (a generator, a student) only
        `diverged` counts, from the highest loss of its first window on. In an attempt that was
        resumed the start is where that was: "flat" is silent there, and only `diverged` is a divergence.
    Usual causes: a learning rate that is too high or too low, no gradient in the first layers, labels that do not fit.
    What to try: try to overfit a single batch; change the learning rate by a factor of 10 either way.
    Source: SageMaker Debugger (every 10 steps, 0.1 percent, rise of 5 percent); loss twice its minimum: TheDeepChecker;
        comparing windows with regard to noise is ours (house).
    """

    needs = (Needs(scalars=("loss",), why="to follow the training loss"),)
    calibrations: ClassVar = {"sagemaker": {"window": 10, "diff_percent": 0.1, "patience": 2}}

    window: int = parameter(50, help="steps whose losses are taken together", unit="steps", ge=4)
    patience: int = parameter(4, help="windows before a flat loss counts", unit="windows", ge=2)
    diff_percent: float = parameter(1.0, help="smallest decrease since the start", unit="percent", ge=0, le=100)
    diverged: float = parameter(20.0, help="loss over that of the start", unit="ratio", gt=1)
    hopeless: int = parameter(20, help="steps after which a diverged loss is an error", unit="steps", ge=1)

    start: list[float] = state(list)
    seen: int = state(int)
    #: Highest loss of the first window.
    highest: float = state(float)
    buffer: list[float] = state(list)
    #: Median and standard error of the first and of the best window, and of the one before the latest.
    first: list[float] = state(list)
    best: list[float] = state(list)
    rising: int = state(int)
    away: int = state(int)
    windows: int = state(int)
    waiting: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most two findings at a TRAIN step."""
        name = signals.loss_name(view) if view.mode is Mode.TRAIN else None
        loss = view.scalar(name) if name is not None else None
        if loss is None or not math.isfinite(loss):
            return
        self.seen += 1
        finding = self._divergence(view)
        if finding is not None:
            yield finding
        signals.remember_start(self.start, loss, 8)
        if self.seen <= self.window:
            self.highest = max(self.highest, loss)
        self.buffer.append(loss)
        self.waiting = self.waiting or signals.warming_up(view)
        if len(self.buffer) >= self.window:
            yield from self._window_ended(view)

    def _divergence(self, view: StepView) -> Finding | None:
        """Recent losses far above the first ones: also within the very first steps."""
        if not self.start or self.seen < 3:
            return None
        recent = signals.losses(view, min(5, self.seen - 1))
        # While the start is still being gathered its smallest value stands for it: a divergence may be in it already.
        reference = median(self.start) if len(self.start) >= 8 else min(self.start)
        if reference <= 0:
            return None
        if reference > 4 * min(self.start):
            reference = min(self.start)
        if signals.in_turns(view):
            # What is learned from another model (a student, a critic) has no level before that model has one.
            if self.seen <= self.window:
                return None
            reference = max(reference, self.highest)
        now = median(recent.tolist())
        rise = now / reference
        self.away = self.away + 1 if rise >= self.diverged else 0
        # The smaller limit needs more evidence: a few high losses are common right after the start.
        # And where a training was resumed the loss is low, so that multiples of it are soon reached.
        # And what one model loses another may win: the loss of a generator rises while all is well.
        unclear = self.seen < 16 or signals.resumed(view) or signals.in_turns(view)
        if rise < 4 or (rise < self.diverged and unclear):
            return None
        return self.finding(
            view,
            severity=Severity.ERROR if self.away >= self.hopeless else Severity.WARNING,
            subject="divergence",
            tensors=[signals.loss_name(view) or "loss"],
            value=now,
            limit=reference * (self.diverged if rise >= self.diverged else 4.0),
            message=f"the loss has diverged: {now:.3g} at step {view.mode_step}, "
            f"{rise:.3g} times what it was at the start",
            symptoms=("loss_diverged",),
            evidence={**signals.optimizer_evidence(view), **signals.loss_evidence(view)},
        )

    def _window_ended(self, view: StepView) -> Iterable[Finding]:
        losses, waiting = np.array(self.buffer), self.waiting
        self.buffer, self.waiting = [], False
        now = [float(np.median(losses)), _standard_error(losses)]
        if not self.first:
            self.first = self.best = now
            return
        # Windows during warm-up are not held against the training.
        self.windows += 0 if waiting else 1
        risen = now[0] > 2 * self.best[0] > 0 and now[0] > self.best[0] + 3 * (now[1] + self.best[1])
        self.rising = self.rising + 1 if risen and now[0] > 0.25 * float(np.median(self.start)) else 0
        self.best = min(self.best, now)
        if self.rising >= 2 and not signals.in_turns(view):
            yield self._finding(
                view, "rise", now[0], 2 * self.best[0], "loss_rising",
                f"the loss rises again: {now[0]:.3g} over the last {self.window} steps up to step {view.mode_step}, "
                f"after {self.best[0]:.3g} at best",
            )  # fmt: skip
        elif self.windows >= self.patience - 1 and not waiting and self._flat(view, now):
            yield self._finding(
                view, "flat", now[0], self.first[0] * (1 - self.diff_percent / 100), "loss_flat",
                f"the loss does not fall: {now[0]:.4g} over the last {self.window} steps up to step {view.mode_step}, "
                f"{self.first[0]:.4g} over the first",
            )  # fmt: skip

    def _flat(self, view: StepView, now: list[float]) -> bool:
        """Whether the loss is where it started, with some certainty, and that is a fault."""
        if signals.in_turns(view) or _accurate(view) or signals.resumed(view):
            return False
        scale = abs(self.first[0])
        # The first losses matter too: a training can have finished learning within its first window.
        began = max(self.first[0], float(np.median(self.start)))
        decrease = min(began - now[0], began - self.best[0])
        noise = 2 * math.hypot(now[1], self.first[1])
        return decrease < scale * self.diff_percent / 100 and (noise < 0.05 * scale or self.windows >= 20)

    def _finding(self, view: StepView, subject: str, value: float, limit: float, symptom: str, message: str) -> Finding:
        return self.finding(
            view, severity=Severity.WARNING, subject=subject, tensors=[signals.loss_name(view) or "loss"],
            value=value, limit=limit, message=message, symptoms=(symptom,),
            evidence={**signals.optimizer_evidence(view), **signals.loss_evidence(view)},
        )  # fmt: skip


def _standard_error(losses: npt.NDArray[np.float64]) -> float:
    """Standard error of the median, from the median absolute deviation (1.4826 for a normal distribution)."""
    spread = 1.4826 * float(np.median(np.abs(losses - np.median(losses))))
    return 1.2533 * spread / math.sqrt(len(losses))


def _accurate(view: StepView) -> bool:
    """Whether the training classifies nearly everything right: then there is nothing left to fall."""
    accuracy = view.series("accuracy", Mode.TRAIN, 16)
    return len(accuracy) > 0 and float(np.median(accuracy)) >= 0.95
