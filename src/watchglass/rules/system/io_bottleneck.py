"""IOBottleneck: GPUs wait for disks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules.gpu_samples import WaitingGPUs
from watchglass.rules.needs import Needs
from watchglass.tables import Window


class IOBottleneck(WaitingGPUs):
    """The GPUs have little to do while the cores wait for disks.

    Looks at: `cpu.iowait` and `gpu.utilization` at the same times, after the first training step. With several GPUs,
        the mean of those that the run uses.
    Fires when: after `patience` samples of a machine, at more than `threshold` percent of them the wait for disks was
        above `io_threshold` and the GPUs were below `gpu_threshold` percent.
    Usual causes: many small files; a network file system; data that exceeds the memory and is read again in each epoch.
    What to try: faster storage, fewer and larger files, a copy of the data on a local disk.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: condition, 50, 50 and 70 percent, and 1000 samples: SageMaker Debugger documentation; house: 100 samples,
        only those after the first training step, and only GPUs that the run uses.
    """

    needs = (
        Needs(metrics=("gpu.utilization",), why="to see whether a GPU waits"),
        Needs(metrics=("cpu.iowait",), why="to see waits for disks"),
    )
    calibrations: ClassVar = {
        "sagemaker": {"threshold": 50.0, "io_threshold": 50.0, "gpu_threshold": 70.0, "patience": 1000}
    }

    io_threshold: float = parameter(50.0, help="wait for disks that is long", unit="%", ge=0, le=100)
    gpu_threshold: float = parameter(70.0, help="utilisation of a waiting GPU", unit="%", ge=0, le=100)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each machine."""
        what = f"more than {self.io_threshold:g} % of the cores waited for disks and"
        return self._waiting(
            window, "cpu.iowait", self.io_threshold, self.gpu_threshold, what, symptoms=("gpu_waits_for_disks",)
        )
