"""WeightUpdateRatio: updates are too large, or too small, relative to the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, count
from watchglass.rules import course, learning_rates, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import weight_update_ratio
from watchglass.rules.streaks import Streaks
from watchglass.stats import median
from watchglass.tables import StepView

#: Ratio below which an update changes hardly more than the last bits of a float32 (house).
_NIL = 1e-6


class WeightUpdateRatio(Rule):
    """The updates are too large or too small relative to the weights that they change.

    Looks at: the root mean square of the exact update over that of the weight before it, for every weight with two or
        more axes; the learning rate and the loss.
    Fires when: one of these holds. Layers that start from zero do not count.
        * For half of the weights this ratio exceeds `extreme` in two captures in a row. One capture is enough beyond
        ten times `extreme`, or at a learning rate far above usual ones.
        * For half of the weights it exceeds `large` in `window` captures in a row: an `info`. It is a `warning` beyond
        three times `large`, or at such a learning rate while the loss does not fall.
        * Updates are too small, and the loss has not fallen by `learned` with certainty: the median ratio is below
        `small` in `window_small` captures in a row after 200 steps, or all updates of a run together are below `travel`
        at its end. This is not reported while the learning rate warms up, after it has decayed, in a resumed attempt,
        or if the first accuracy is far above guessing.
    Usual causes: a learning rate that is too high or too low.
    What to try: a learning rate that brings the ratio near 1e-3.
    Costs: a copy of some parameters at captured steps, within capture_memory_bytes, and statistics of weights.
    Source: 1e-3 as healthy: Karpathy, CS231n; 1e-4 to 1e-1: TheDeepChecker; 10 and 1e-8: SageMaker Debugger
        documentation; house: windows, and conditions on loss and schedule.
    """

    starts_with = "stage"
    needs = (
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), why="to measure each update"),
        Needs(role=Role.WEIGHT, statistics=("rms",), why="to compare the update with the weight"),
        Needs(scalars=("loss",), optional=True, why="to distinguish small updates from convergence"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
    )
    modes = (Mode.TRAIN,)
    calibrations: ClassVar = {"sagemaker": weight_update_ratio.WeightUpdateRatio}

    large: float = parameter(0.1, help="ratio above which updates are large", unit="ratio", gt=0)
    extreme: float = parameter(1.0, help="ratio above which an update overwrites the weight", unit="ratio", gt=0)
    small: float = parameter(1e-4, help="median ratio below which updates are too small", unit="ratio", ge=0)
    window: int = parameter(16, help="captures in a row with large updates", unit="captures", ge=1)
    window_small: int = parameter(5, help="captures in a row with small updates", unit="captures", ge=1)

    travel: float = parameter(0.02, help="sum of all updates over the weight that is too small", unit="ratio", ge=0)
    learned: float = parameter(0.1, help="decrease of the loss for which updates are large enough", unit="ratio", ge=0)

    start: list[float] = state(list)
    accuracy: list[float] = state(list)
    course: dict[str, Any] = state(course.empty)
    seen: int = state(int)
    #: The latest median ratios, and the weights with the smallest ones.
    usual: list[float] = state(list)
    smallest: list[str] = state(list)
    #: ``"extreme"``, ``"large"`` and ``"small"`` ratios, and captures with ``"any"``.
    sizes: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with captured updates."""
        loss = signals.loss(view)
        signals.remember_start(self.start, loss)
        if len(self.accuracy) < 8:
            signals.remember_start(self.accuracy, signals.above_guessing(view), 8)
        if loss is not None and math.isfinite(loss):
            course.follow(self.course, loss)
        self.seen += view.covers
        if not view.captured or signals.skipped(view):
            return
        weights, rows, ratios = signals.update_ratios(view)
        if not len(ratios) or not np.any(ratios > 0):
            return
        usual = median(ratios)
        # Half of the weights reach this ratio: the upper one of two in the middle.
        reached = float(np.sort(ratios)[len(ratios) // 2])
        size = "their size" if len(ratios) > 1 else "its size"
        change = "half of the weights change" if len(ratios) > 1 else "the only weight changes"

        def share(limit: float) -> float:
            return int(np.count_nonzero(ratios > limit)) / len(ratios)

        def named(order: npt.NDArray[np.float64]) -> list[str]:
            names = weights.names
            return [names[row] for row in rows[np.argsort(-order)[:8]].tolist()]

        extremes = self.sizes.follow(view.mode_step, share(self.extreme) >= 0.5, "extreme")
        larges = self.sizes.follow(view.mode_step, share(self.large) >= 0.5, "large")
        smalls = self.sizes.follow(view.mode_step, usual < self.small, "small")
        self.sizes.follow(view.mode_step, True, "any")
        rate = learning_rates.too_high(view)
        above = bool(rate)
        if extremes >= (1 if above else 2) or share(10 * self.extreme) >= 0.5:
            message = f"{change} by {reached:.3g} times {size} or more at step {view.mode_step}"
            yield self._finding(
                view, Severity.WARNING, "extreme", named(ratios), reached, self.extreme, message,
                "update_ratio_extreme", *rate, measured={},
            )  # fmt: skip
        elif larges >= self.window:
            found = course.windows(self.course)
            # Embeddings that start small take such steps for a while, and learn.
            serious = share(3 * self.large) >= 0.5 or (above and len(found) > 2 and not course.falls(found))
            severity = Severity.WARNING if serious else Severity.INFO
            message = (
                f"{change} by {reached:.3g} times {size} or more at step {view.mode_step}, and by more than "
                f"{self.large:.3g} in each of the last {count(larges, 'capture')}"
            )
            yield self._finding(
                view,
                severity,
                "large",
                named(ratios),
                reached,
                self.large,
                message,
                "update_ratio_large",
                *rate,
                measured={"captures": larges},
            )
        self.usual = [*self.usual[-15:], usual]
        self.smallest = named(-ratios)
        if smalls >= self.window_small and view.model_step >= 200:
            yield from self._too_small(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """Whether all updates together were too small to move the weights, in a run of any length."""
        if self.usual and self.seen >= 80 and median(self.usual) * self.seen < self.travel:
            yield from self._too_small(view)

    applicable = staticmethod(signals.without_layers)

    def _too_small(self, view: StepView) -> Iterable[Finding]:
        """A finding if small updates are a fault: not while warming up, decayed or converging, nor when fine-tuning."""
        found, usual = course.windows(self.course), median(self.usual)
        trained = len(self.accuracy) > 0 and median(self.accuracy) > 0.15
        if trained or signals.resumed(view) or signals.warming_up(view) or signals.decayed(view) or len(found) < 2:
            return
        fall = found[0].value - found[-1].value
        if fall > self.learned * abs(found[0].value) and found[0].above(found[-1]) > 2:
            return
        symptoms = ["updates_small_at_usual_rate"] if learning_rates.ordinary(view) else []
        symptoms += ["rate_below_usual"] if learning_rates.beyond_usual(view) == "below" else []
        symptoms += ["update_ratio_nil"] if usual < _NIL else []
        size = (
            f"updates are only {usual:.2g} times the weights in the median up to step {view.mode_step}, so that "
            f"{self.seen} of them move a weight by {100 * usual * self.seen:.2g} % at most"
            if usual > 0
            else f"updates change most weights not at all in the median up to step {view.mode_step}"
        )
        latest = signals.losses(view, 32)
        message = size + signals.loss_words(self.start, latest)
        yield self._finding(
            view,
            Severity.WARNING,
            "small",
            self.smallest,
            usual,
            self.small,
            message,
            "update_ratio_small",
            *symptoms,
            measured={"moved": usual * self.seen, "updates": self.seen, **signals.loss_evidence(self.start, latest)},
        )

    def _finding(
        self, view: StepView, severity: Severity, subject: str, worst: list[str], usual: float, limit: float,
        message: str, *symptoms: str, measured: Mapping[str, float],
    ) -> Finding:  # fmt: skip
        # All updates of a short run together are small from the first one on.
        since = self.sizes.since(subject) if subject in self.sizes or subject != "small" else self.sizes.since("any")
        return self.finding(
            view, severity=severity, subject=subject, tensors=worst, value=usual, limit=limit, message=message,
            symptoms=symptoms, since=since,
            evidence={**signals.evidence(view), "update_ratio": usual, **measured},
        )  # fmt: skip
