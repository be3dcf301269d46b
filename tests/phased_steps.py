"""Training runs for tests of rules about time, made of numbers: steps with phases, and samples of metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from watchglass.records import LOADER_WORKERS, PAUSES, PHASE_NAMES, PHASES, Mode, Pause
from watchglass.testing import Batch, Step


def phased(
    mode: Mode = Mode.TRAIN,
    facts: Any = (),
    pauses: Mapping[Pause, float] = MappingProxyType({}),
    loads: Sequence[tuple[float, ...]] = (),
    **seconds: float,
) -> Step:
    """A step whose phases take these seconds; those that are not given take none. Pauses are a part of them.

    ``loads`` are rows of the batches of data loaders.
    """
    row = [seconds.pop(f"{name}_s", 0.0) for name in PHASE_NAMES]
    assert not seconds
    paused = [(int(pause), 1, spent) for pause, spent in pauses.items()]
    rows = {PHASES: [row], PAUSES: paused, LOADER_WORKERS: list(loads)}
    # Python 3.12 sums otherwise: without rounding, the same seconds would be other nanoseconds there.
    return Step(scalars={"loss": 1.0}, rows=rows, seconds=round(sum(row), 9), mode=mode, facts=facts)


def loader(workers: int, batches: int = 100, name: str = "loader") -> dict[str, Any]:
    """The fact of a data loader."""
    return {"data_loader": {"loader": name, "num_workers": workers, "batches": batches}}


def busy(
    samples: int,
    *,
    cpu: Callable[[int], float] = lambda n: 50.0,
    wait: Callable[[int], float] = lambda n: 0.0,
    gpu: Callable[[int], list[float]] = lambda n: [50.0],
    memory: Callable[[int], list[float]] = lambda n: [50.0],
    processes: Sequence[float] = (),
    begins_s: float = 0.1,
) -> list[Step | Batch]:
    """A step, and samples every half second of a machine with GPUs, each metric by the number of the sample."""
    metrics: dict[str, list[float] | list[list[float]]] = {
        "cpu.utilization": [cpu(n) for n in range(samples)],
        "cpu.iowait": [wait(n) for n in range(samples)],
        "gpu.utilization": [gpu(n) for n in range(samples)],
        "gpu.memory.utilization": [(memory(n) * len(gpu(n)))[: len(gpu(n))] for n in range(samples)],
    }
    if processes:
        metrics["gpu.processes"] = [list(processes)] * samples
    return [Step(scalars={"loss": 1.0}, seconds=begins_s), Batch(metrics=metrics, seconds=samples / 2)]
