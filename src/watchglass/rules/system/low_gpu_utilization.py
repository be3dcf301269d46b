"""LowGPUUtilization: a GPU is often idle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, rounded
from watchglass.rules.gpu_samples import of_used_gpus, unjudged
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import Window


class LowGPUUtilization(Rule):
    """A GPU is used little, or its use goes up and down.

    Looks at: `gpu.utilization` of each GPU that the run uses, after the first training step.
    Fires when: after `patience` samples of a GPU, the 95th percentile of the last `window` ones is below
        `threshold_p95`. Or it is not, and the 5th percentile is below `threshold_p5`: then something stops the GPU now
        and then. A GPU counts as used while any kernel runs, so a high utilisation does not show that it is used well.
    Usual causes: a batch that is too small; waits for data or for the processor; copies and synchronisation.
    What to try: a larger batch; InputBound and CPUBottleneck show waits; fewer calls of `.item()` and `.cpu()`.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: condition, 70 and 10 percent, 500 and 1000 samples: SageMaker Debugger documentation; house: 200 samples
        before the first judgement, only those after the first training step, and only GPUs that the run uses.
    """

    needs = (Needs(metrics=("gpu.utilization",), why="to see whether a GPU is idle"),)
    streams = Windows(kinds=("samples",), length_s=10)
    calibrations: ClassVar = {
        "sagemaker": {"threshold_p95": 70.0, "threshold_p5": 10.0, "window": 500, "patience": 1000}
    }

    threshold_p95: float = parameter(70.0, help="95th percentile of a GPU that is used", unit="%", ge=0, le=100)
    threshold_p5: float = parameter(10.0, help="5th percentile of a GPU that does not wait", unit="%", ge=0, le=100)
    window: int = parameter(500, help="samples that are judged", unit="samples", ge=1, le=10_000)
    patience: int = parameter(200, help="samples before the first judgement", unit="samples", ge=1)

    #: By stream and GPU: the last samples, and how many there were.
    recent: dict[str, list[float]] = state(dict)
    samples: dict[str, int] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each GPU."""
        if window.last is None:
            return
        series = of_used_gpus(window, "gpu.utilization")
        for gpu, column in zip(series.instances, series.values.T, strict=True):
            key = f"{window.stream}/{gpu}"
            new = column[np.isfinite(column)].tolist()
            self.recent[key] = [*self.recent.get(key, []), *new][-self.window :]
            self.samples[key] = self.samples.get(key, 0) + len(new)
            if new and self.samples[key] >= self.patience:
                yield from self._judged(window, gpu, self.recent[key])

    def applicable(self, step: Any) -> str:
        """Not for runs without a GPU, or with few samples."""
        return unjudged(max(self.samples.values(), default=0), self.patience)

    def _judged(self, window: Window, gpu: str, recent: list[float]) -> Iterable[Finding]:
        low, high = np.percentile(recent, [5, 95]).tolist()
        little = high < self.threshold_p95
        if not little and low >= self.threshold_p5:
            return
        place = f"GPU {gpu}" if window.stream == "system" else f"GPU {gpu} of {window.stream}"
        what = (
            f"was below {rounded(high)} % in 95 % of the last samples"
            if little
            else f"was below {rounded(low)} % in 5 % of the last samples, and above {rounded(high)} % in others"
        )
        yield self.finding(
            window,
            subject=f"{window.stream}/{gpu}/{'little' if little else 'changes'}",
            value=high if little else low,
            limit=self.threshold_p95 if little else self.threshold_p5,
            message=f"{place} {what}",
            symptoms=("gpu_little_used" if little else "gpu_use_changes",),
            evidence={"percentiles": [5, 95], "used_percent": [low, high]},
        )
