"""The contract of a source of system metrics, and the plain records that sources and the sampler exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from watchglass.errors import WatchglassError


class SourceUnavailableError(WatchglassError):
    """The machine has nothing that the source could read. The message is a sentence for the notes of the stream."""


@dataclass(frozen=True)
class Metric:
    """What one or several numbers mean.

    Attributes:
        name: Dotted name, ``"cpu.core.utilization"``.
        unit: Of its numbers: ``"%"`` (0 to 100 of what may be used, or of one core for processes), ``"bytes"``,
            ``"bytes/s"``, ``"W"``, ``"°C"``, ``"MHz"``, ``"cores"``; "" for a count.
        instances: What each number is about, such as the numbers of cores; () for one number. Sources may share a
            metric if their instances differ.
        exact: Keep all bits of a 32-bit number. Other numbers are rounded to 12 significant bits, an error of at most
            0.013 %, which makes a stream half as large.
    """

    name: str
    unit: str = ""
    instances: tuple[str, ...] = ()
    exact: bool = False


@dataclass(frozen=True)
class MetricReading:
    """Numbers of one metric, one for each instance; NaN where a number is unknown."""

    metric: Metric
    values: Sequence[float]


class MetricSource(ABC):
    """One kind of system metrics. The sampler calls it from one thread.

    Its constructor raises :class:`SourceUnavailableError` where the machine has no such metrics. To add a source: a
    file in ``profile/sources/``, and a line in ``profile/sources/__init__.py``.

    Attributes:
        name: Its name in notes, ``"processor"``.
        core_share: Largest share of one core that it may use, as a ratio: it is read less often where a reading costs
            more. None for no limit: it is read at every sample.
    """

    name: ClassVar[str]
    core_share: ClassVar[float | None] = None

    @abstractmethod
    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """The present numbers, in an order that stays the same while metrics and instances do.

        A rate is the mean since the call before; the first call returns none, or NaN. May raise anything: the sampler
        notes it, and calls again after a pause.

        Args:
            now_ns: The monotonic clock.
        """

    def close(self) -> None:
        """Release what it holds; may be called when the last call raised."""
        return


class Rates:
    """Numbers per second from counters that only grow."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, float]] = {}

    def of(self, name: str, counter: float, now_ns: int) -> float:
        """The growth of a counter per second since the call before.

        NaN at the first call, and where the counter was set back (a device was reset).
        """
        then_ns, then = self._before.get(name, (now_ns, counter))
        self._before[name] = (now_ns, counter)
        if now_ns <= then_ns or counter < then:
            return float("nan")
        return (counter - then) / (now_ns - then_ns) * 1e9
