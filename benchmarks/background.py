"""What happens in addition to the measured steps: processor time of threads and child processes, files that pile up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

# How Linux numbers the clocks of other threads and processes (include/linux/posix-timers.h); C programs get the same
# numbers from pthread_getcpuclockid and clock_getcpuclockid, which Python gives for its own threads only.
_PROCESS, _THREAD = 2, 6


class Background:
    """Processor seconds of the threads and child processes that were started after this object was made.

    Call it for the seconds so far. One that has ended keeps the time of the last look.
    """

    def __init__(self) -> None:
        self._before = set(_clocks())
        self._seconds: dict[int, float] = {}

    def look(self) -> None:
        """Find what was started since the last look."""
        for clock in _clocks():
            if clock not in self._before:
                self._seconds.setdefault(clock, 0.0)

    def __call__(self) -> float:
        """Seconds used so far by all that were found."""
        for clock in self._seconds:
            try:
                self._seconds[clock] = time.clock_gettime(clock)
            except OSError:
                continue
        return sum(self._seconds.values())


def _clocks() -> Iterator[int]:
    for thread in os.listdir("/proc/self/task"):
        yield (~int(thread) << 3) | _THREAD
    for process in _children(os.getpid()):
        yield (~process << 3) | _PROCESS


def _children(process: int) -> Iterator[int]:
    """Child processes of a process, and theirs."""
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = [int(number) for number in path.read_text().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from _children(child)


def delete_oldest(folder: Path, patterns: Iterable[str], kept_bytes: int) -> None:
    """Delete the oldest files of some patterns below a folder until what is left is small enough; the newest stays."""
    found = [(path.stat(), path) for pattern in patterns for path in folder.rglob(pattern)]
    found.sort(key=lambda entry: entry[0].st_mtime_ns)
    size = sum(status.st_size for status, _ in found)
    for status, path in found[:-1]:
        if size <= kept_bytes:
            return
        path.unlink()
        size -= status.st_size
