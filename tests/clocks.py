"""A clock that tests move."""

from __future__ import annotations

import time


class Now:
    """The time for what is tested; it stands unless a test moves it. Wall time begins at the real one.

    As ``phase_clock`` of a hook that records phases, it is the time of the steps, however busy the machine is.

    Attributes:
        s: Seconds, as ``time.monotonic()`` gives them.
    """

    def __init__(self, s: float = 1000.0) -> None:
        self.s = s
        self._begin_s, self._wall_ns = s, time.time_ns()

    def advance(self, seconds: float) -> None:
        self.s += seconds

    def monotonic(self) -> float:
        return self.s

    def monotonic_ns(self) -> int:
        return round(self.s * 1e9)

    def time_ns(self) -> int:
        return self._wall_ns + int((self.s - self._begin_s) * 1e9)
