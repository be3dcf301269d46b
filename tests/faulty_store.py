"""A store whose writer can be cut off in any write, and which can be away."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.errors import StoreError
from watchglass.store import Content, Store, WrapperStore


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


class FaultyStore(WrapperStore):
    """Another store, with faults that a test asks for. What it does not write, it hands on.

    Attributes:
        fault: What happens to the next write; used up by it.
        away: Whether every call fails.
        fails_after: So many calls go well before every one fails; None for no limit.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.fault: Fault | None = None
        self.away = False
        self.fails_after: int | None = None

    def behind(self) -> Store:
        if self.fails_after is not None:
            self.fails_after -= 1
        if self.away or (self.fails_after is not None and self.fails_after < 0):
            raise StoreError(f"cannot reach {self.location}: it is away; try again")
        return self._inner

    def _end(self, fault: Fault) -> None:
        if fault.killed:
            raise Killed
        raise StoreError(f"cannot write to {self.location}: the connection broke; try again")

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """See :meth:`Store.write`."""
        store, fault, self.fault = self.behind(), self.fault, None
        if fault is None or fault.arrives >= 1:
            store.write(path, data, replace=replace)
        if fault is not None:
            self._end(fault)

    def append(self, path: str, data: bytes) -> None:
        """See :meth:`Store.append`."""
        store, fault, self.fault = self.behind(), self.fault, None
        arriving = data if fault is None else data[: round(fault.arrives * len(data))]
        if arriving:
            store.append(path, arriving)
        if fault is not None:
            self._end(fault)
