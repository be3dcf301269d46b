"""Traffic of the disks."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from watchglass.profile.metrics import Metric, MetricReading, MetricSource, Rates, SourceUnavailableError

_METRICS = {
    "read_bytes": Metric("disk.read", "bytes/s"),
    "write_bytes": Metric("disk.write", "bytes/s"),
    "read_count": Metric("disk.reads", "1/s"),
    "write_count": Metric("disk.writes", "1/s"),
}


class DiskSource(MetricSource):
    """``disk.read``, ``disk.write``, ``disk.reads`` and ``disk.writes`` of all disks of the machine."""

    name = "disk"

    def __init__(self) -> None:
        self._rates = Rates()
        if psutil.disk_io_counters() is None:
            raise SourceUnavailableError("the system shows no disks, so their traffic is not sampled")

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        counters = psutil.disk_io_counters()
        if counters is None:
            raise SourceUnavailableError("the system shows no disks")
        return [
            MetricReading(metric, [self._rates.of(field, getattr(counters, field), now_ns)])
            for field, metric in _METRICS.items()
        ]
