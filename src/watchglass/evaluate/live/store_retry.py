"""Retrying while the store is unreachable, at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from watchglass.config import Clock
from watchglass.errors import CompactedError, StoreError

_T = TypeVar("_T")


@dataclass(eq=False)
class StoreRetry:
    """Whether the store is reachable, and retries while it is not. It is until it refuses. For one thread."""

    poll_s: Callable[[], float]  #: Seconds between looks while it is reachable.
    report: Callable[[str], None]  #: Takes a sentence for the user.
    #: Called before the next attempt where the files that were being read have been compacted.
    begin_again: Callable[[], None]
    clock: Clock
    longest_pause_s: float  #: Longest pause between two attempts.
    backoff_s: float = field(default=0.0, init=False)  #: Seconds until the next attempt.
    #: Whether the files that were being read have been replaced by a compacted generation.
    outdated: bool = field(default=False, init=False)
    _since_s: float | None = field(default=None, init=False)
    _given_up: bool = field(default=False, init=False)

    @property
    def unreachable(self) -> bool:
        """Whether the last attempt was refused."""
        return self._since_s is not None

    @property
    def unreachable_s(self) -> float:
        """Seconds since the first refused attempt; 0 while the store is reachable."""
        return 0.0 if self._since_s is None else self.clock.monotonic() - self._since_s

    def attempt(self, work: Callable[[], _T]) -> _T | None:
        """The result of ``work``; None where the store is unreachable, or the files have been compacted."""
        try:
            if self.outdated:
                self.begin_again()
                self.outdated = False
            return work()
        except StoreError as error:
            if self._since_s is None:
                self._since_s = self.clock.monotonic()
                self.report(f"store unreachable, retrying: {error}")
            self.backoff_s = min(self.longest_pause_s, max(self.poll_s(), 2 * self.backoff_s))
        except CompactedError:
            self.outdated = True
        return None

    def over(self) -> None:
        """The store is reachable again."""
        self._since_s, self.backoff_s, self._given_up = None, 0.0, False

    def insist(self, work: Callable[[], bool], patience_s: float, pause: Callable[[float], bool]) -> bool:
        """Do ``work`` until it has succeeded; returns whether it has.

        Args:
            work: Returns whether it is done.
            patience_s: How long to retry while the store is unreachable. Once that was in vain, later work is tried
                once, and nothing is reported again.
            pause: Waits so many seconds, or less; returns False to end the retries.
        """
        give_up_s = self.clock.monotonic() + (0.0 if self._given_up else patience_s)
        while not self.attempt(work):
            if self.outdated:
                continue
            if self.clock.monotonic() >= give_up_s or not pause(self.poll_s()):
                if not self._given_up:
                    self.report("not all steps were evaluated and written; to evaluate them: watchglass check")
                self._given_up = True
                self._since_s = self.clock.monotonic() if self._since_s is None else self._since_s
                return False
        self.over()
        return True


def slept(seconds: float) -> bool:
    """Waits; always True, since nothing ends the wait."""
    time.sleep(seconds)
    return True
