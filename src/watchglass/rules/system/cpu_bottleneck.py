"""CPUBottleneck: GPUs wait for the processor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules.gpu_samples import WaitingGPUs
from watchglass.rules.needs import Needs
from watchglass.tables import Window


class CPUBottleneck(WaitingGPUs):
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
    calibrations: ClassVar = {
        "sagemaker": {"threshold": 50.0, "cpu_threshold": 90.0, "gpu_threshold": 10.0, "patience": 100}
    }

    cpu_threshold: float = parameter(90.0, help="utilisation of a busy processor", unit="%", ge=0, le=100)
    gpu_threshold: float = parameter(10.0, help="utilisation of a waiting GPU", unit="%", ge=0, le=100)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each machine."""
        what = f"the processor was above {self.cpu_threshold:g} % while"
        return self._waiting(
            window, "cpu.utilization", self.cpu_threshold, self.gpu_threshold, what,
            symptoms=("gpu_waits_for_processor",),
        )  # fmt: skip
