"""Memory and swap."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from watchglass.profile.limits import CgroupLimits, read_limits
from watchglass.profile.metrics import Metric, MetricReading, MetricSource

_USED = Metric("memory.used", "bytes", exact=True)
_SHARE = Metric("memory.utilization", "%")
_LIMIT = Metric("memory.limit", "bytes", exact=True)
_SWAP = Metric("swap.used", "bytes", exact=True)


class MemorySource(MetricSource):
    """``memory.used``, ``memory.utilization``, ``memory.limit`` and ``swap.used``, in every system of psutil.

    Used memory excludes what the system can drop. Under a limit of a control group it is that of the group, and 100 %
    is the limit.

    Args:
        limits: Those of control groups; read from the system if None.
    """

    name = "memory"

    def __init__(self, limits: CgroupLimits | None = None) -> None:
        self._limits = read_limits() if limits is None else limits

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        memory, limit_bytes = psutil.virtual_memory(), self._limits.memory_bytes
        used, limit = memory.total - memory.available, memory.total
        if limit_bytes is not None and limit_bytes < memory.total:
            used, limit = self._limits.memory_used_bytes() or 0, limit_bytes
        return [
            MetricReading(_USED, [used]),
            MetricReading(_SHARE, [100 * used / limit]),
            MetricReading(_LIMIT, [limit]),
            MetricReading(_SWAP, [psutil.swap_memory().used]),
        ]
