"""Clocks for parts of a step: of the host, and of a device, by events for which the training thread never waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any


class Stopwatch(ABC):
    """Notes points of time, and gives the time between them later."""

    note: Callable[[], Any]  #: Returns the present point of time, without a wait; for any thread that trains.
    on_device: bool  #: Whether it measures the time of a device.

    @abstractmethod
    def seconds(self, notes: Sequence[Any]) -> list[float]:
        """The seconds from each note to the next one, one less than notes. May wait: for the recorder's thread."""


class HostStopwatch(Stopwatch):
    """The monotonic clock of the host.

    Args:
        now_ns: The clock, in nanoseconds.
    """

    on_device = False

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.note = now_ns

    def seconds(self, notes: Sequence[Any]) -> list[float]:
        """The differences."""
        return [(later - earlier) / 1e9 for earlier, later in pairwise(notes)]


class DeviceStopwatch(Stopwatch):
    """Events in the stream of a device.

    Args:
        record: Records an event in the current stream, and returns it.
        prepare: Called on the recorder's thread before it waits for an event.
    """

    on_device = True

    def __init__(self, record: Callable[[], Any], prepare: Callable[[], None]) -> None:
        self.note = record
        self._prepare = prepare

    def seconds(self, notes: Sequence[Any]) -> list[float]:
        """What the device measured."""
        if notes:
            self._prepare()
            notes[-1].synchronize()
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(notes)]
