"""CPUBottleneck: GPUs wait for the processor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, in_percent
from watchglass.rules.gpu_samples import percent_waiting, unjudged
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import Window


class CPUBottleneck(Rule):
    """The GPUs have little to do while the processor is fully busy.

    Looks at: `cpu.utilization` and `gpu.utilization` at the same times, after the first training step. With several
        GPUs, the mean of those that the run uses.
    Fires when: after `patience` samples of a machine, at more than `threshold` percent of them the processor was above
        `cpu_threshold` and the GPUs were below `gpu_threshold` percent.
    Usual causes: decoding and augmentation of samples on too few cores; many small operations.
    What to try: more cores, or fewer operations on them: prepare samples once, augment on the GPU; a larger batch.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: condition, 50, 90 and 10 percent, and 100 samples: SageMaker Debugger documentation; house: only samples
        after the first training step, and only GPUs that the run uses.
    """

    needs = (
        Needs(metrics=("gpu.utilization",), why="to see whether a GPU waits"),
        Needs(metrics=("cpu.utilization",), why="to see whether the processor is busy"),
    )
    streams = Windows(kinds=("samples",), length_s=10)
    calibrations: ClassVar = {
        "sagemaker": {"threshold": 50.0, "cpu_threshold": 90.0, "gpu_threshold": 10.0, "patience": 100}
    }

    threshold: float = parameter(50.0, help="share of the samples at which GPUs wait", unit="%", ge=0, le=100)
    cpu_threshold: float = parameter(90.0, help="utilisation of a busy processor", unit="%", ge=0, le=100)
    gpu_threshold: float = parameter(10.0, help="utilisation of a waiting GPU", unit="%", ge=0, le=100)
    patience: int = parameter(100, help="samples before the first judgement", unit="samples", ge=1)

    #: By stream: number of samples, and of those at which GPUs wait.
    points: dict[str, list[int]] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each machine."""
        percent = percent_waiting(
            self.points, window, "cpu.utilization",
            above=self.cpu_threshold, gpu_below=self.gpu_threshold, patience=self.patience,
        )  # fmt: skip
        if percent <= self.threshold:
            return
        yield self.finding(
            window,
            subject=window.stream,
            value=percent,
            limit=self.threshold,
            message=f"{in_percent(percent / 100)} of the time the processor was above {self.cpu_threshold:g} % while "
            f"the GPUs were "
            f"below {self.gpu_threshold:g} %",
            symptoms=("gpu_waits_for_processor",),
        )

    def applicable(self, step: Any) -> str:
        """Not for runs without a GPU, or with few samples."""
        return unjudged(max((samples for samples, _ in self.points.values()), default=0), self.patience)
