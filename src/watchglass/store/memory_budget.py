"""One budget for what a process keeps in memory of the runs that it reads, so that no run decides how much that is.

What grows with the content of a run is charged before it is kept, and given back when it goes. Some kilobytes of a run
may stand for gigabytes, since its columns are compressed; bounds on single frames do not add up.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from threading import RLock

from watchglass.config import environment, machine_bytes
from watchglass.errors import MemoryBudgetError

#: The most that is taken where nothing else is said, and the part of the machine's memory.
_MOST_BYTES, _SHARE = 2 << 30, 4


class MemoryBudget:
    """So many bytes for all runs that are read at the same time. Safe to use from several threads.

    Attributes:
        limit_bytes: How many there are.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = RLock()  # what goes may go at any moment, also within take
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """How many are taken."""
        return self._used

    def take(self, size: int) -> None:
        """Take so many bytes, or none.

        Raises:
            MemoryBudgetError: That many are not left.
        """
        with self._lock:
            if self._used + size > self.limit_bytes:
                raise MemoryBudgetError(
                    f"reading this run takes {(self._used + size) >> 20:,} MiB of memory but at most "
                    f"{self.limit_bytes >> 20:,} MiB are allowed; if you trust the run, allow more with "
                    f"{environment.READ_MEMORY}, in bytes, or read a part of it"
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._used -= size


class Charges:
    """What one owner keeps, charged to a budget; all of it is given back with the owner. For one thread."""

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._held = 0
        self._budget = budget if budget is not None else reading_budget()
        self._until: deque[tuple[int, int]] = deque()

    def add(self, size: int, last_step: int | None = None) -> None:
        """Charge so many bytes, which are needed up to a step, or for ever.

        Raises:
            MemoryBudgetError: That many are not left; nothing is charged.
        """
        self._budget.take(size)
        self._held += size
        if last_step is not None:
            self._until.append((last_step, size))

    def forget(self, before: int) -> None:
        """What was needed up to an earlier step is kept no more."""
        gone = sum(size for last, size in self._until if last < before)
        if gone:
            self._until = deque(entry for entry in self._until if entry[0] >= before)
            self._release(gone)

    def clear(self) -> None:
        """Nothing is kept any longer."""
        self._until.clear()
        self._release(self._held)

    def __del__(self) -> None:
        self._release(self._held)

    def _release(self, size: int) -> None:
        if not size:
            return
        self._held -= size
        self._budget.give_back(size)


@cache
def reading_budget() -> MemoryBudget:
    """That of this process: what its environment says, else the smaller of 2 GiB and a quarter of the memory."""
    named = environment.read_memory_bytes()
    machine = machine_bytes()
    return MemoryBudget(named or min(_MOST_BYTES, machine // _SHARE if machine else _MOST_BYTES))
