"""One memory budget per process for the runs that it reads, so that no run decides how much memory is used.

Data that grows with a run is charged before it is kept, and given back when it is released. Some kilobytes of a run may
hold gigabytes, since columns are compressed; bounds on single frames do not bound their sum.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from threading import RLock

from watchglass.config import environment, machine_bytes
from watchglass.errors import MemoryBudgetError

#: The default limit, and the part of the machine's memory that bounds it.
_MOST_BYTES, _SHARE = 2 << 30, 4


class MemoryBudget:
    """A number of bytes for all runs that are read at the same time. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes  #: The limit.
        self._lock = RLock()  # an owner may be released at any moment, also within take
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        return self._used

    def take(self, size: int) -> None:
        """Charge a number of bytes.

        Raises:
            MemoryBudgetError: Fewer are left; nothing is charged.
        """
        with self._lock:
            if self._used + size > self.limit_bytes:
                raise MemoryBudgetError(
                    f"reading this run takes {(self._used + size) >> 20:,} MiB of memory but at most "
                    f"{self.limit_bytes >> 20:,} MiB are allowed; if you trust the run, raise the limit with "
                    f"{environment.READ_MEMORY}, in bytes, or read a part of it"
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Release bytes."""
        with self._lock:
            self._used -= size


class Charges:
    """Bytes that one owner keeps, charged to a budget and released with the owner. For one thread."""

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._held = 0
        self._budget = budget if budget is not None else reading_budget()
        self._until: deque[tuple[int, int]] = deque()

    def add(self, size: int, last_step: int | None = None) -> None:
        """Charge bytes that are needed up to a step, or for the life of the owner.

        Raises:
            MemoryBudgetError: Fewer are left; nothing is charged.
        """
        self._budget.take(size)
        self._held += size
        if last_step is not None:
            self._until.append((last_step, size))

    def forget(self, before: int) -> None:
        """Release the bytes that were needed up to an earlier step."""
        gone = sum(size for last, size in self._until if last < before)
        if gone:
            self._until = deque(entry for entry in self._until if entry[0] >= before)
            self._release(gone)

    def clear(self) -> None:
        """Release all bytes."""
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
    """The budget of this process: as its environment sets it, else the smaller of 2 GiB and a quarter of the memory."""
    named = environment.read_memory_bytes()
    machine = machine_bytes()
    return MemoryBudget(named or min(_MOST_BYTES, machine // _SHARE if machine else _MOST_BYTES))
