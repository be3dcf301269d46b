"""OverallSystemUsage: what each machine of the run used."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from watchglass.config import parameter
from watchglass.records import Finding, Severity, in_percent, rounded
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep, Window

#: Metrics in percent, by the words for them, and those of which each instance counts for itself.
_METRICS = {
    "cpu.utilization": "processor", "cpu.iowait": "wait for disks", "memory.utilization": "memory",
    "gpu.utilization": "GPUs", "gpu.memory.utilization": "GPU memory",
}  # fmt: skip
#: Metrics of which means show how much of the processor other programs use, and the least share that is stated (house).
_OF_RUN = ("cpu.utilization", "processes.utilization", "cpu.limit")
_OTHERS = 25.0
#: Classes of a percent.
_CLASSES = 201


class OverallSystemUsage(Rule):
    """A summary of the load of each machine.

    Looks at: processor, wait for disks, memory, GPUs and GPU memory of each machine, over the whole run.
    Fires when: never for a fault. At the end it gives an `info` for each machine: median, 95th and 99th percentile,
        least and greatest value of each metric, within half a percent; and what other programs use of the processor, if
        that is a quarter or more.
    Usual causes: none, because it reports no fault.
    What to try: look for a metric that is near 100 percent, which limits the run, and for one near zero. Where other
        programs use the processor, all times of the run are longer than they would be alone.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: SageMaker Debugger documentation; house: a quarter.
    """

    needs = (
        Needs(metrics=("cpu.utilization",), why="to summarise its use"),
        Needs(metrics=("processes.utilization", "cpu.limit"), optional=True),
    )
    streams = Windows(kinds=("samples",), length_s=10)

    least: int = parameter(1, help="samples of a summary", unit="samples", ge=1)

    #: By stream and metric: number of samples in each half percent.
    counts: dict[str, dict[str, list[int]]] = state(dict)
    #: By stream and metric of :data:`_OF_RUN`: number and sum of the samples.
    sums: dict[str, dict[str, list[float]]] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """No findings: counts the samples."""
        sums = self.sums.setdefault(window.stream, {name: [0, 0.0] for name in _OF_RUN})
        for metric in _OF_RUN:
            values = window.samples(metric).values
            known = values[np.isfinite(values)]
            sums[metric] = [sums[metric][0] + len(known), sums[metric][1] + float(known.sum())]
        counts = self.counts.setdefault(window.stream, {})
        for metric in _METRICS:
            values = window.samples(metric).values
            known = np.clip(values[np.isfinite(values)], 0, 100)
            if len(known):
                new = np.bincount(np.rint(2 * known).astype(np.int64), minlength=_CLASSES)
                counts[metric] = (np.array(counts.get(metric, [0] * _CLASSES)) + new).tolist()
        return ()

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """The summary of each machine."""
        for stream, counts in self.counts.items():
            used = {metric: _summary(np.array(each)) for metric, each in counts.items() if sum(each) >= self.least}
            if not used:
                continue
            words = "; ".join(
                f"{_METRICS[metric]} {each['p50']:g} % in the median, {each['p95']:g} % at the 95th percentile"
                for metric, each in used.items()
            )
            yield self.finding(
                step,
                severity=Severity.INFO,
                subject=stream,
                message=f"{stream}: {words}{self._others(stream)}",
                evidence={"usage": used},
            )

    def _others(self, stream: str) -> str:
        """What other programs use of the processor; "" if that is little, or not known."""
        sums = self.sums.get(stream, {})
        if not sums or not all(number for number, _ in sums.values()):
            return ""
        busy, own, cores = (total / number for number, total in sums.values())
        of_run = own / cores if cores else busy
        if busy - of_run < _OTHERS:
            return ""
        others = rounded(busy - of_run)
        return f"; other programs use {others} % of the processor on average, the run {in_percent(of_run / 100)}"


def _summary(counts: NDArray[np.int64]) -> dict[str, float]:
    """Percentiles of counted half percents."""
    below = np.cumsum(counts)
    places = {"min": 0.0, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        name: float(np.searchsorted(below, max(1, int(np.ceil(share * below[-1]))))) / 2
        for name, share in places.items()
    }
