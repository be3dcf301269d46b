"""A clock that only a test moves."""

from __future__ import annotations


class FakeClock:
    """Seconds, in place of ``time.monotonic``; for one thread.

    Attributes:
        now_s: Its time.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Seconds, as ``time.monotonic()`` gives them."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Advances the clock."""
        self.now_s += seconds
