"""GPUMemoryIncrease: the used memory of a GPU rises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, in_percent, rounded
from watchglass.rules.gpu_samples import of_used_gpus, unjudged
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import Window


class GPUMemoryIncrease(Rule):
    """The used memory of a GPU is far higher than before.

    Looks at: `gpu.memory.utilization` of each GPU that the run uses, after the first training step.
    Fires when: after `patience` samples of a GPU, the mean of `window` samples is higher than that of the `window` ones
        before by more than `increase` percent of the memory.
    Usual causes: losses or outputs that are kept with their graph; inputs that become longer; a second model; the cache
        of PyTorch's allocator, which keeps what it once needed.
    What to try: keep `loss.item()`, not the loss; `torch.cuda.memory_snapshot()` shows what holds the memory.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: condition, 10 percent, and 100 and 500 samples: SageMaker Debugger documentation; house: windows that follow
        each other, only samples after the first training step, and only GPUs that the run uses.
    """

    needs = (Needs(metrics=("gpu.memory.utilization",), why="to see whether it rises"),)
    streams = Windows(kinds=("samples",), length_s=10)
    calibrations: ClassVar = {"sagemaker": {"increase": 10.0, "patience": 100, "window": 500}}

    increase: float = parameter(10.0, help="rise of the mean", unit="% of the memory", gt=0, le=100)
    patience: int = parameter(100, help="samples before the first judgement", unit="samples", ge=1)
    window: int = parameter(500, help="samples of a mean", unit="samples", ge=1)

    #: By stream and GPU: all samples, samples and sum of the open window, and the mean of the one before.
    samples: dict[str, int] = state(dict)
    open: dict[str, list[float]] = state(dict)
    before: dict[str, float] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each GPU."""
        if window.last is None:
            return
        series = of_used_gpus(window, "gpu.memory.utilization")
        for gpu, column in zip(series.instances, series.values.T, strict=True):
            for value in column[np.isfinite(column)].tolist():
                yield from self._add(window, gpu, value)

    def applicable(self, step: Any) -> str:
        """Not for runs without a GPU, or with less than two windows."""
        return unjudged(max(self.samples.values(), default=0), max(self.patience, 2 * self.window))

    def _add(self, window: Window, gpu: str, value: float) -> Iterable[Finding]:
        key = f"{window.stream}/{gpu}"
        self.samples[key] = self.samples.get(key, 0) + 1
        number, whole = self.open.get(key, [0.0, 0.0])
        self.open[key] = [number + 1, whole + value]
        if number + 1 < self.window:
            return
        mean, before = (whole + value) / self.window, self.before.get(key)
        self.before[key], self.open[key] = mean, [0.0, 0.0]
        if before is None or self.samples[key] < self.patience or mean - before <= self.increase:
            return
        place = f"GPU {gpu}" if window.stream == "system" else f"GPU {gpu} of {window.stream}"
        yield self.finding(
            window,
            subject=key,
            value=mean - before,
            limit=self.increase,
            message=f"the used memory of {place} rose from {rounded(before)} to {in_percent(mean / 100)} on average of "
            f"{self.window} samples each",
            symptoms=("gpu_memory_rises",),
            evidence={"before_percent": before, "now_percent": mean},
        )
