"""The contract of a clock, so that tests can set the time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The time; the module :mod:`time` is one."""

    def time_ns(self) -> int:
        """Wall time, nanoseconds since 1970."""

    def monotonic_ns(self) -> int:
        """A time that never jumps, nanoseconds since an arbitrary moment."""

    def monotonic(self) -> float:
        """The same in seconds."""
