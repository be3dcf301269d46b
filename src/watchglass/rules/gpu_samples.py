"""Samples of the GPUs that a run uses, beside other metrics of the same machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import count
from watchglass.tables import MetricSeries, StreamRows, Window


def of_used_gpus(window: StreamRows, metric: str) -> MetricSeries:
    """The samples of a metric of the GPUs on which the run has processes; of all GPUs where that is not known.

    Args:
        window: A window with samples.
        metric: A metric with an instance for each GPU.
    """
    series, processes = window.samples(metric), window.samples("gpu.processes")
    if not len(processes.time_ns):
        return series
    used = {name for name, column in zip(processes.instances, processes.values.T, strict=True) if (column > 0).any()}
    columns = [place for place, name in enumerate(series.instances) if name in used]
    known = np.isfinite(series.values[:, columns]).any(1)
    return replace(
        series, instances=tuple(series.instances[each] for each in columns), time_ns=series.time_ns[known],
        values=series.values[known][:, columns],
    )  # fmt: skip


def with_busiest(busy: Sequence[float], windows: Iterable[StreamRows]) -> list[float]:
    """The sum over samples of the utilization of the run's busiest GPU, in percent, and their number.

    Args:
        busy: The same before these windows; ``[0.0, 0]`` at first.
        windows: Windows with samples.
    """
    total, number = busy
    for window in windows:
        values = of_used_gpus(window, "gpu.utilization").values
        known = np.isfinite(values)
        values = np.where(known, values, -np.inf)[known.any(1)]
        if len(values):
            total, number = total + float(values.max(1).sum()), number + len(values)
    return [total, number]


def idle_share(busy: Sequence[float]) -> float | None:
    """The share of time in which all GPUs of the run were idle, 0 to 1, by :func:`with_busiest`; None if unknown."""
    return 1 - busy[0] / (100 * busy[1]) if busy[1] else None


def at_once(*series: MetricSeries) -> list[NDArray[Any]]:
    """The mean over the instances of each, float64[n], at the times at which all of them have a value."""
    times = reduce(np.intersect1d, (each.time_ns for each in series))
    return [each.mean_of_instances[np.isin(each.time_ns, times)] for each in series]


def percent_waiting(
    points: dict[str, list[int]], window: Window, metric: str, *, above: float, gpu_below: float, patience: int
) -> float:
    """The share of all samples so far at which the used GPUs of a machine wait, in percent; 0 for too few samples.

    Args:
        points: By stream the number of samples, and of those at which GPUs wait; those of the window are added.
        window: A window with samples; one from before the first training step does not count.
        metric: A metric of the machine.
        above: The GPUs wait while it is above this.
        gpu_below: And while their mean utilisation is below this, in percent.
        patience: Least number of samples.
    """
    if window.last is None:
        return 0.0
    gpu, other = at_once(of_used_gpus(window, "gpu.utilization"), window.samples(metric))
    before = points.get(window.stream, [0, 0])
    waiting = int(((other > above) & (gpu < gpu_below)).sum())
    samples, waits = points[window.stream] = [before[0] + len(gpu), before[1] + waiting]
    return 100 * waits / samples if samples >= max(1, patience) else 0.0


def unjudged(samples: int, patience: int) -> str:
    """Why a rule has judged no GPU, from the most samples of one machine or GPU; "" where it has."""
    if not samples:
        return "there are no samples of a GPU that the run uses after its first training step"
    few = f"the run has {count(samples, 'sample')} of GPUs after its first training step; {patience} are needed"
    return few if samples < patience else ""
