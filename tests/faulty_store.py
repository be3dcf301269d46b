"""A store whose writer can be cut off in any write, and which can be away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchglass.errors import StoreError
from watchglass.store import Entry, Store
from watchglass.store.contract import Buffer, Content


class Killed(BaseException):
    """The process that was writing is gone; nothing of it runs any more."""


@dataclass
class Fault:
    """What happens to the next write.

    Attributes:
        arrives: Share of its bytes that arrive. Only an append can be torn: of whole objects all arrives from 1 on, or
            nothing.
        killed: Whether the writer's process ends there; else it is told that the store failed.
    """

    arrives: float = 0.0
    killed: bool = False


class FaultyStore(Store):
    """Another store, with faults that a test asks for. What it does not write, it hands on.

    Attributes:
        fault: What happens to the next write; used up by it.
        away: Whether every call fails.
        fails_after: So many calls go well before every one fails; None for no limit.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.appends = inner.appends
        self.location = inner.location
        self.fault: Fault | None = None
        self.away = False
        self.fails_after: int | None = None

    def _call(self) -> Store:
        if self.fails_after is not None:
            self.fails_after -= 1
        if self.away or (self.fails_after is not None and self.fails_after < 0):
            raise StoreError(f"cannot reach {self.location}: it is away; try again")
        return self.inner

    def _end(self, fault: Fault) -> None:
        if fault.killed:
            raise Killed
        raise StoreError(f"cannot write to {self.location}: the connection broke; try again")

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """See :meth:`Store.write`."""
        store, fault, self.fault = self._call(), self.fault, None
        if fault is None or fault.arrives >= 1:
            store.write(path, data, replace=replace)
        if fault is not None:
            self._end(fault)

    def append(self, path: str, data: bytes) -> None:
        """See :meth:`Store.append`."""
        store, fault, self.fault = self._call(), self.fault, None
        arriving = data if fault is None else data[: round(fault.arrives * len(data))]
        if arriving:
            store.append(path, arriving)
        if fault is not None:
            self._end(fault)

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See :meth:`Store.read`."""
        return self._call().read(path, start, end)

    def read_many(self, ranges: Sequence[tuple[str, int, int | None]]) -> Sequence[bytes | None]:
        """See :meth:`Store.read_many`."""
        return self._call().read_many(ranges)

    def list(self, prefix: str = "", after: str = "") -> list[Entry]:
        """See :meth:`Store.list`."""
        return self._call().list(prefix, after)

    def delete(self, path: str) -> None:
        """See :meth:`Store.delete`."""
        self._call().delete(path)

    def size(self, path: str) -> int | None:
        """See :meth:`Store.size`."""
        return self._call().size(path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See :meth:`Store.folders`."""
        return self._call().folders(prefix)

    def map(self, path: str) -> Buffer:
        """See :meth:`Store.map`."""
        return self._call().map(path)

    def prune(self, prefix: str = "") -> None:
        """See :meth:`Store.prune`."""
        self._call().prune(prefix)

    def is_empty(self) -> bool:
        """See :meth:`Store.is_empty`."""
        return self._call().is_empty()
