"""StepOutlier as SageMaker Debugger documents it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class StepOutlier(Rule):
    """Steps take far longer than the mean of all steps.

    Looks at: the durations of the steps of `mode`, by default of training and evaluation.
    Fires when: more than `n_outliers` steps are longer than the mean of all steps so far by more than `stddev` standard
        deviations. It looks every `scan_interval_us` microseconds and at the end.
    Usual causes: those of the rule with calibration `default`.
    What to try: the same.
    Costs: nothing: the durations of steps are always recorded.
    Source: SageMaker Debugger documentation.
    """

    # Every step has a duration. A rule without any needs would read all statistics.
    needs = (Needs(modes=(Mode.TRAIN, Mode.EVAL), scalars=("loss",), optional=True),)

    stddev: float = parameter(5.0, help="standard deviations from the mean to an outlier", gt=0)
    mode: str = parameter("GLOBAL", help="mode of the steps, GLOBAL for both", choices=("TRAIN", "EVAL", "GLOBAL"))
    n_outliers: int = parameter(10, help="outliers without a finding", unit="steps", ge=0, le=1000)
    scan_interval_us: int = parameter(60_000_000, help="time between two looks", unit="microseconds", ge=1)

    #: Number, mean and sum of squared deviations of the durations, and the longest of them as a heap.
    seen: int = state(int)
    mean: float = state(float)
    m2: float = state(float)
    longest: list[float] = state(list)
    looked_ns: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding after an interval, if there are too many outliers."""
        names = ("TRAIN", "EVAL") if self.mode == "GLOBAL" else (self.mode,)
        if not view.leads or view.mode.name not in names:
            return
        self._add((view.end_ns - view.start_ns) / 1e9)
        self.looked_ns = self.looked_ns or view.start_ns
        if view.end_ns - self.looked_ns >= 1000 * self.scan_interval_us:
            self.looked_ns = view.end_ns
            yield from self._judged(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last look."""
        yield from self._judged(view)

    def _add(self, seconds: float) -> None:
        self.seen += 1
        distance = seconds - self.mean
        self.mean += distance / self.seen
        self.m2 += distance * (seconds - self.mean)
        heapq.heappush(self.longest, seconds)
        if len(self.longest) > self.n_outliers + 1:
            heapq.heappop(self.longest)

    def _judged(self, view: StepView) -> Iterable[Finding]:
        spread = math.sqrt(self.m2 / self.seen) if self.seen else 0.0
        limit = self.mean + self.stddev * spread
        # The heap has one more than are allowed: its least one decides.
        if spread == 0 or len(self.longest) <= self.n_outliers or self.longest[0] <= limit:
            return
        yield self.finding(
            view,
            subject="outliers",
            value=max(self.longest),
            limit=limit,
            message=f"more than {self.n_outliers} steps took longer than {1000 * limit:.3g} ms, which is "
            f"{self.stddev:g} standard deviations above the mean of {1000 * self.mean:.3g} ms; the longest took "
            f"{1000 * max(self.longest):.3g} ms",
            symptoms=("outliers_in_steps",),
        )
