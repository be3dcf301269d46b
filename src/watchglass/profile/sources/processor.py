"""Use of the processor: total, per core, and time that waits for disks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil

from watchglass.profile.limits import CgroupLimits, read_limits, usable_cores
from watchglass.profile.metrics import Metric, MetricReading, MetricSource, Rates

_TOTAL, _LIMIT = Metric("cpu.utilization", "%"), Metric("cpu.limit", "cores")
_WAIT = Metric("cpu.iowait", "%")


class ProcessorSource(MetricSource):
    """``cpu.utilization``, ``cpu.core.utilization``, ``cpu.iowait`` and ``cpu.limit``, in every system of psutil.

    100 % of ``cpu.utilization`` is what the run may use: the cores of its affinity, or the limit of its control group,
    whose own processor time then counts. Per core it is the time of all processes. I/O wait is the time in which a core
    was idle while a process that last ran on it waited for a disk.

    Args:
        limits: Those of control groups; read from the system if None.
    """

    name = "processor"

    def __init__(self, limits: CgroupLimits | None = None) -> None:
        self._limits = read_limits() if limits is None else limits
        self._cores = usable_cores()
        self._per_core = Metric("cpu.core.utilization", "%", tuple(map(str, self._cores)))
        self._before: list[tuple[float, float, float]] = []
        self._rates = Rates()

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        times = psutil.cpu_times(percpu=True)
        # The operating system may take a core offline.
        now = [_split(times[core]) if core < len(times) else (0.0, 0.0, 0.0) for core in self._cores]
        before, self._before = self._before, now
        group_s, used = self._limits.cpu_seconds(), float("nan")
        if group_s is not None:
            used = self._rates.of("group", group_s, now_ns)
        if not before:
            return ()
        spent = [[new - old for new, old in zip(*pair, strict=True)] for pair in zip(now, before, strict=True)]
        # Counters of the kernel may go back by a tick.
        cores = [_percent(busy, whole) for busy, _, whole in spent]
        busy, wait, whole = (sum(max(each[place], 0.0) for each in spent) for place in range(3))
        limit = float(len(self._cores))
        total = _percent(busy, whole)
        if self._limits.cores is not None and self._limits.cores < limit:
            limit, total = self._limits.cores, 100 * used / self._limits.cores
        return [
            MetricReading(_TOTAL, [total]),
            MetricReading(_WAIT, [_percent(wait, whole)]),
            MetricReading(_LIMIT, [limit]),
            MetricReading(self._per_core, cores),
        ]


def _split(times: Any) -> tuple[float, float, float]:
    """Seconds of a core: busy, waiting for disks, and all. Time of guests is part of the time of users."""
    wait = float(getattr(times, "iowait", 0.0))
    whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    # Stolen time belongs to other machines: the run could not use it.
    return whole - times.idle - wait - getattr(times, "steal", 0.0), wait, whole


def _percent(part: float, whole: float) -> float:
    return min(100.0, max(0.0, 100 * part / whole)) if whole > 0 else float("nan")
