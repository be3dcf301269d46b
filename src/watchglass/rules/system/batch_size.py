"""BatchSize: the batch is too small for the machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, rounded
from watchglass.rules.gpu_samples import at_once, of_used_gpus, unjudged
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import Window


class BatchSize(Rule):
    """Processor, GPUs and GPU memory are all used little: a larger batch would fit.

    Looks at: `cpu.utilization`, `gpu.utilization` and `gpu.memory.utilization` at the same times, after the first
        training step. With several GPUs, the mean of those that the run uses.
    Fires when: after `patience` samples of a machine, the 95th percentiles of the last `window` ones are below
        `cpu_threshold_p95`, `gpu_threshold_p95` and `gpu_memory_threshold_p95`.
    Usual causes: a batch size from an example or for a smaller GPU.
    What to try: double the batch size, and scale the learning rate with it; a smaller machine.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: condition, 70 percent, and 100 and 500 samples: SageMaker Debugger documentation; house: only samples after
        the first training step, and only GPUs that the run uses.
    """

    needs = (
        Needs(metrics=("gpu.utilization",), why="to see whether a GPU is idle"),
        Needs(metrics=("gpu.memory.utilization",), why="to see whether a larger batch fits"),
        Needs(metrics=("cpu.utilization",), why="to see whether the processor is idle"),
    )
    streams = Windows(kinds=("samples",), length_s=10)
    calibrations: ClassVar = {
        "sagemaker": {
            "cpu_threshold_p95": 70.0, "gpu_threshold_p95": 70.0, "gpu_memory_threshold_p95": 70.0,
            "patience": 100, "window": 500,
        }
    }  # fmt: skip

    cpu_threshold_p95: float = parameter(70.0, help="95th percentile of a used processor", unit="%", ge=0, le=100)
    gpu_threshold_p95: float = parameter(70.0, help="95th percentile of a used GPU", unit="%", ge=0, le=100)
    gpu_memory_threshold_p95: float = parameter(70.0, help="95th percentile of used memory", unit="%", ge=0, le=100)
    patience: int = parameter(100, help="samples before the first judgement", unit="samples", ge=1)
    window: int = parameter(500, help="samples that are judged", unit="samples", ge=1, le=10_000)

    #: By stream: the last samples of processor, GPUs and their memory, and how many there were.
    recent: dict[str, list[list[float]]] = state(dict)
    samples: dict[str, int] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding for each machine."""
        if window.last is None:
            return
        gpus = (of_used_gpus(window, metric) for metric in ("gpu.utilization", "gpu.memory.utilization"))
        new = np.stack(at_once(window.samples("cpu.utilization"), *gpus), 1).tolist()
        recent = self.recent[window.stream] = [*self.recent.get(window.stream, []), *new][-self.window :]
        samples = self.samples[window.stream] = self.samples.get(window.stream, 0) + len(new)
        limits = (self.cpu_threshold_p95, self.gpu_threshold_p95, self.gpu_memory_threshold_p95)
        if not new or samples < self.patience:
            return
        cpu, gpu, memory = np.percentile(recent, 95, axis=0).tolist()
        if any(each >= limit for each, limit in zip((cpu, gpu, memory), limits, strict=True)):
            return
        yield self.finding(
            window,
            subject=window.stream,
            value=gpu,
            limit=self.gpu_threshold_p95,
            message=f"in 95 % of the last samples the processor was below {rounded(cpu)} %, the GPUs below "
            f"{rounded(gpu)} %, and "
            f"{rounded(memory)} % of their memory was enough",
            symptoms=("batch_leaves_room",),
            evidence={"percentile": 95, "cpu_percent": cpu, "gpu_percent": gpu, "gpu_memory_percent": memory},
        )

    def applicable(self, step: Any) -> str:
        """Not for runs without a GPU, or with few samples."""
        return unjudged(max(self.samples.values(), default=0), self.patience)
