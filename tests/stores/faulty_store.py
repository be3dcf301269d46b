"""A store whose writer can be cut off in any write, and which can be unreachable."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.errors import StoreError
from watchglass.store import Content, Store, WrapperStore


class Killed(BaseException):
    """The writing process is dead: no more of its code may run."""


@dataclass
class Fault:
    """The fault of the next write.

    Attributes:
        arrives: Share of its bytes that arrive. Only an append can be torn: a whole object arrives at a share
            of 1, else nothing of it does.
        killed: Whether the writer's process ends there; else it gets a StoreError.
    """

    arrives: float = 0.0
    killed: bool = False


class FaultyStore(WrapperStore):
    """Another store, with faults that a test requests. Reads pass through.

    Attributes:
        fault: What happens to the next write; used up by it.
        unreachable: Whether every call fails.
        fails_after: So many calls go well before every one fails; None for no limit.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.fault: Fault | None = None
        self.unreachable = False
        self.fails_after: int | None = None

    def behind(self) -> Store:
        if self.fails_after is not None:
            self.fails_after -= 1
        if self.unreachable or (self.fails_after is not None and self.fails_after < 0):
            raise StoreError(f"cannot reach {self.location}: it is unreachable; try again")
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
