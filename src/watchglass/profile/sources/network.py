"""Traffic of the network."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from watchglass.profile.metrics import Metric, MetricReading, MetricSource, Rates, SourceUnavailableError

_RECEIVED, _SENT = Metric("network.received", "bytes/s"), Metric("network.sent", "bytes/s")
#: Interfaces whose bytes never leave the machine, or are counted by another interface already.
_INNER = ("lo", "docker", "veth", "br-", "virbr", "ifb", "tun", "tap", "cni", "flannel", "cali")


class NetworkSource(MetricSource):
    """``network.received`` and ``network.sent``: bytes between this machine and others, over all its interfaces."""

    name = "network"

    def __init__(self) -> None:
        self._rates = Rates()
        if not _counters():
            raise SourceUnavailableError("the system shows no network interfaces, so their traffic is not sampled")

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        counters = _counters()
        received = sum(self._rates.of(f"{name} in", each.bytes_recv, now_ns) for name, each in counters.items())
        sent = sum(self._rates.of(f"{name} out", each.bytes_sent, now_ns) for name, each in counters.items())
        return [MetricReading(_RECEIVED, [received]), MetricReading(_SENT, [sent])]


def _counters() -> dict[str, psutil._ntp.snetio]:
    return {name: each for name, each in psutil.net_io_counters(pernic=True).items() if not name.startswith(_INNER)}
