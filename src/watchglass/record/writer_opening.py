"""What a recorder writes to, and how it gets there although the store may be away when it begins."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from watchglass.errors import ForkedError, StoreError
from watchglass.store import RawTensor, Rings

_log = logging.getLogger("watchglass")

#: Seconds that the end of a training waits without a word.
_QUIET_S = 3.0
#: Seconds between tries: the first and the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0


class FrameWriter(Protocol):
    """Where frames go: the store's segment writer, or a list in tests.

    Attributes:
        rings: Where the flight recorder writes, None for nowhere.
        flush_s: Seconds between flushes, where nobody has chosen them.
        urgent_s: Seconds that lie between two flushes at least, however urgent the second is.
        patience_s: Seconds in which the last flush is tried again, should it be refused.
        closing_s: Seconds that this and :meth:`close` may take together.
    """

    rings: Rings | None
    flush_s: float
    urgent_s: float
    patience_s: float
    closing_s: float

    def write(self, frames: list[bytes]) -> None:
        """Write frames in order, all or none; raises StoreError when the store refuses."""

    def write_tensors(self, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        """Write raw tensors ``(global_step, tensor)``; returns their index rows."""

    def close(self) -> bool:
        """Nothing more will be written; returns whether all that was survives this process."""


class Opening(Protocol):
    """Makes a writer, on the recorder's thread.

    Attributes:
        patience_s: How long to go on trying once the training is over.
    """

    @property
    def patience_s(self) -> float: ...  # noqa: D102

    def __call__(self) -> FrameWriter:
        """The writer. Called again where it raises StoreError: the store may come back."""

    def abandon(self) -> None:
        """It is not called again."""


def open_patiently(opening: Opening, wake: threading.Event, closing: Callable[[], bool]) -> FrameWriter:
    """The writer, as soon as the store lets it be made.

    Args:
        opening: Makes it.
        wake: Set when ``closing`` may have changed; cleared here.
        closing: Whether the training is over; one more try is made then in any case.

    Raises:
        StoreError: The last one, once patience is at its end.
        WatchglassError: Others at once: they do not pass by waiting.
    """
    try:
        return _tried(opening, wake, closing)
    except Exception:
        opening.abandon()
        raise


def has_ended(thread: threading.Thread, limit_s: Callable[[], float], is_open: Callable[[], bool]) -> bool:
    """Wait for the end of a recorder's thread; says so where the training is over and nothing was opened yet.

    Args:
        thread: The recorder's.
        limit_s: Seconds to wait in all, asked again and again.
        is_open: Whether its writer is there, which says itself what it waits for.

    Returns:
        Whether it ended in time.
    """
    began_s, told = time.monotonic(), False
    while thread.is_alive():
        waited_s = time.monotonic() - began_s
        left_s = limit_s() - waited_s
        if left_s <= 0:
            return False
        if waited_s >= _QUIET_S and not told and not is_open():
            told = True
            _log.warning(
                "watchglass: the training is over and its store has not let anything be written yet; the process tries "
                "for %.0f s more at most, and Ctrl-C gives up what was recorded", left_s,
            )  # fmt: skip
        thread.join(0.2)
    return True


def _tried(opening: Opening, wake: threading.Event, closing: Callable[[], bool]) -> FrameWriter:
    pause_s, given_up_s = 0.0, float("inf")
    told = over = False
    while True:
        if closing() and not over:
            over, pause_s, given_up_s = True, 0.0, time.monotonic() + opening.patience_s
        try:
            return opening()
        except ForkedError:
            raise
        except StoreError as error:
            now = time.monotonic()
            if over and now >= given_up_s:
                raise
            if not told:
                told = True
                _log.warning("watchglass: %s; what is recorded waits in memory, and it is tried again", error)
        pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause_s))
        until_s = min(now + pause_s, given_up_s)
        while time.monotonic() < until_s and closing() is over:
            wake.wait(until_s - time.monotonic())
            wake.clear()
