"""What a reader may take of the machine for one hostile input, whatever that claims."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: Seconds for one input of some ten kilobytes; sound ones take milliseconds.
SECONDS = 20.0
#: Bytes beyond what the process had before: one batch of 256 MiB decoded and converted, or 32 MiB of JSON parsed.
MEMORY_BYTES = 1 << 30
#: Bytes of address space beyond what the process has, for one input: threads and mapped files take some of it.
_SPACE_BYTES = 4 << 30


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


def _address_space() -> int:
    """Bytes of address space that this process has now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


@contextmanager
def _limited() -> Iterator[None]:
    """Let the system refuse what is far too much: a check afterwards comes too late for the machine."""
    known, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + _SPACE_BYTES
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (known, most))


@contextmanager
def bounded(before_bytes: int) -> Iterator[None]:
    """Raise where what happens within takes too long, or makes the process grow too far beyond ``before_bytes``."""
    known = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with _limited():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, known)
    grown = peak_bytes() - before_bytes
    if grown > MEMORY_BYTES:
        raise TooMuch(f"the process grew by {grown >> 20} MiB; at most {MEMORY_BYTES >> 20} MiB are allowed")
