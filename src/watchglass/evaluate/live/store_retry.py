"""A store that is away: asked again, ever more rarely, while nothing that was found is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from watchglass.errors import CompactedError, StoreError

_T = TypeVar("_T")

#: Longest pause between tries of a store that is away.
_LONGEST_PAUSE_S = 30.0


class StoreRetry:
    """Whether the store answers, and what is done where it does not. For one thread."""

    def __init__(
        self, poll_s: Callable[[], float], say: Callable[[str], None], begin_again: Callable[[], None]
    ) -> None:
        """It answers, as far as is known.

        Args:
            poll_s: Seconds between looks while it answers.
            say: Takes a sentence for whoever looks on.
            begin_again: Called before the next question where what was being read has been compacted.
        """
        self._poll_s, self._say, self._begin_again = poll_s, say, begin_again
        self._since_s: float | None = None
        #: Seconds until asking again makes sense.
        self.backoff_s = 0.0
        #: Whether what was being read has been replaced by a compacted generation.
        self.outdated = False

    @property
    def away(self) -> bool:
        """Whether it did not answer the last time."""
        return self._since_s is not None

    @property
    def away_s(self) -> float:
        """Seconds since which it has not answered; 0 while it does."""
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s

    def asked(self, question: Callable[[], _T]) -> _T | None:
        """The answer of ``question``; None where the store is away, or what was read has been compacted."""
        try:
            self._up_to_date()
            return question()
        except StoreError as error:
            if self._since_s is None:
                self._since_s = time.monotonic()
                self._say(f"store unreachable, retrying: {error}")
            self.backoff_s = min(_LONGEST_PAUSE_S, max(self._poll_s(), 2 * self.backoff_s))
        except CompactedError:
            self.outdated = True
        return None

    def over(self) -> None:
        """It answers again."""
        self._since_s, self.backoff_s = None, 0.0

    def insist(self, work: Callable[[], bool], patience_s: float, pause: Callable[[float], bool]) -> bool:
        """Do ``work`` until it has succeeded; returns whether it has.

        Args:
            work: What to do; returns whether it is done.
            patience_s: How long it is tried again where the store does not answer.
            pause: Waits so many seconds, or less; returns False where it is not to be tried again.
        """
        give_up_s = time.monotonic() + patience_s
        while True:
            error = ""
            try:
                self._up_to_date()
                if work():
                    self._since_s = None
                    return True
            except CompactedError:
                self.outdated = True
                continue
            except StoreError as refused:
                error = str(refused)
            if time.monotonic() >= give_up_s or not pause(self._poll_s()):
                self._say(f"not all steps were evaluated and written; to evaluate them: watchglass check. {error}")
                self._since_s = time.monotonic() if self._since_s is None else self._since_s
                return False

    def _up_to_date(self) -> None:
        if self.outdated:
            self._begin_again()
            self.outdated = False


def slept(seconds: float) -> bool:
    """Waits where nothing says to end: always True."""
    time.sleep(seconds)
    return True
