"""What a reader may take of the machine for one hostile input, whatever that claims."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Seconds for one input of some ten kilobytes; sound ones take milliseconds.
SECONDS = 20.0
#: Bytes beyond what the process had before: one batch of 256 MiB decoded and converted, or 32 MiB of JSON parsed.
MEMORY_BYTES = 1 << 30


class TooLong(BaseException):
    """A reader is still at it. No exception that a reader might catch."""


class TooMuch(BaseException):
    """A reader took more memory than it may."""


def _late(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"still running after {SECONDS} s")


def peak_bytes() -> int:
    """Most memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@contextmanager
def bounded(before_bytes: int) -> Iterator[None]:
    """Raise where what happens within takes too long, or makes the process grow too far beyond ``before_bytes``."""
    known = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, known)
    grown = peak_bytes() - before_bytes
    if grown > MEMORY_BYTES:
        raise TooMuch(f"the process grew by {grown >> 20} MiB; at most {MEMORY_BYTES >> 20} MiB are allowed")
