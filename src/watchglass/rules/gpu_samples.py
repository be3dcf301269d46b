"""Samples of the GPUs that a run uses, beside other metrics of the same machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.config import parameter
from watchglass.records import Finding, count, in_percent
from watchglass.rules.needs import Windows
from watchglass.rules.rule import Rule, state
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


class WaitingGPUs(Rule):
    """What rules share that see GPUs wait for something else of their machine; abstract."""

    streams = Windows(kinds=("samples",), length_s=10)

    threshold: float = parameter(50.0, help="share of the samples at which GPUs wait", unit="%", ge=0, le=100)
    patience: int = parameter(100, help="samples before the first judgement", unit="samples", ge=1)

    #: By stream: number of samples, and of those at which GPUs wait.
    points: dict[str, list[int]] = state(dict)

    def _waiting(
        self, window: Window, metric: str, above: float, gpu_below: float, what: str, *, symptoms: tuple[str, ...]
    ) -> Iterable[Finding]:
        """A finding about a machine whose GPUs wait at more samples than the threshold.

        Args:
            window: A window with samples; one from before the first training step does not count.
            metric: A metric of the machine.
            above: The GPUs wait while it is above this.
            gpu_below: And while their mean utilisation is below this, in percent.
            what: What is above the limit, as a clause.
            symptoms: Of the finding.
        """
        if window.last is None:
            return
        gpu, other = at_once(of_used_gpus(window, "gpu.utilization"), window.samples(metric))
        before = self.points.get(window.stream, [0, 0])
        waiting = int(((other > above) & (gpu < gpu_below)).sum())
        samples, waits = self.points[window.stream] = [before[0] + len(gpu), before[1] + waiting]
        percent = 100 * waits / samples if samples >= max(1, self.patience) else 0.0
        if percent > self.threshold:
            yield self.finding(
                window,
                subject=window.stream,
                value=percent,
                limit=self.threshold,
                message=f"{in_percent(percent / 100)} of the time {what} the GPUs were below {gpu_below:g} %",
                symptoms=symptoms,
            )

    def applicable(self, step: Any) -> str:
        """Not for runs without a GPU, or with few samples."""
        return unjudged(max((samples for samples, _ in self.points.values()), default=0), self.patience)


def unjudged(samples: int, patience: int) -> str:
    """Why a rule has judged no GPU, from the most samples of one machine or GPU; "" where it has."""
    if not samples:
        return "there are no samples of a GPU that the run uses after its first training step"
    few = f"the run has {count(samples, 'sample')} of GPUs after its first training step; {patience} are needed"
    return few if samples < patience else ""
