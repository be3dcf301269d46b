"""Payloads that are read from the store on demand, and their decoded data, within one bound for all workers."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from watchglass.errors import CompactedError, DamagedDataError, MissingFileError
from watchglass.store import Frame, Store, newest_generation

#: Bytes that are kept: of decoded data for all readers, and of payloads from a network for the readers of a store.
KEPT_BYTES = 256 << 20
#: Segments that are mapped into memory at the same time, and bytes that are fetched at once.
_MAPPED, _FETCHED_BYTES = 8, 64 << 20


#: Returns a key for :class:`Decoded` that is unique for ever, unlike the address of an object.
new_token = count().__next__


class Decoded:
    """Decoded data by owner and name, up to a number of bytes; the least recently used is dropped first.

    For several threads. A finalizer may call :meth:`drop`, even while the same thread is in another method.
    """

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self.limit = limit
        self._lock = Lock()
        self._entries: OrderedDict[tuple[int, str], tuple[Any, int]] = OrderedDict()
        self._dropped: deque[tuple[int, str]] = deque()
        self._bytes = 0
        #: Readers that share this.
        self.members = 0

    @property
    def share(self) -> int:
        """The bytes that one reader may expect to be kept."""
        return self.limit // max(4, self.members)

    def get(self, owner: int, name: str) -> Any:
        """The kept value, or None."""
        with self._lock:
            entry = self._entries.get((owner, name))
            if entry is None:
                return None
            self._entries.move_to_end((owner, name))
            return entry[0]

    def put(self, owner: int, name: str, value: Any, size: int) -> None:
        """Keep ``value``, which has ``size`` bytes."""
        with self._lock:
            self._sweep()
            self._bytes += size - self._entries.pop((owner, name), (None, 0))[1]
            self._entries[owner, name] = (value, size)
            while self._bytes > self.limit and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1][1]

    def drop(self, owner: int, names: Iterable[str]) -> None:
        """Drop the payloads of an owner that no longer needs them."""
        self._dropped.extend([(owner, name) for name in names])
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        while self._dropped:
            self._bytes -= self._entries.pop(self._dropped.popleft(), (None, 0))[1]


#: For all stores together: a process that follows many runs has one bound.
_decoded = Decoded()


def limit_decoded(limit: int) -> None:
    """Let all stores of this process keep at most so many bytes of decoded data."""
    _decoded.limit = limit


class _Kept:
    """The shared memory of all readers of one store: fetched payloads, and mapped segments."""

    def __init__(self) -> None:
        self.bytes = 0
        #: Bytes of payloads that are no longer needed; any thread may add to it.
        self.dropped: deque[int] = deque()
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._lock = Lock()

    def mapped(self, store: Store, path: str) -> memoryview:
        """An object as memory; the last few are reused, since each holds a file open."""
        with self._lock:
            found = self._maps.get(path)
            if found is None:
                found = self._maps[path] = memoryview(store.map(path)).toreadonly()
                while len(self._maps) > _MAPPED:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(path)
            return found


_of_stores: WeakKeyDictionary[Store, _Kept] = WeakKeyDictionary()


def compacted_meanwhile(store: Store) -> CompactedError:
    """The error for a file that a compacted generation has replaced."""
    return CompactedError(f"{store.location} was compacted while it was read; open it again")


class Payloads:
    """Payloads of one worker's frames. For one thread.

    Args:
        store: Where frames were left; None where none are.
        kept_bytes: Bytes of payloads that all readers of the store keep together.
    """

    def __init__(self, store: Store | None, kept_bytes: int = KEPT_BYTES) -> None:
        self._store, self._kept_bytes = store, kept_bytes
        self._kept = _Kept() if store is None else _of_stores.setdefault(store, _Kept())
        self._ahead: dict[tuple[str, int], bytes] = {}
        #: The segment that may still grow, or be cut by its writer: it is read, never mapped.
        self.newest = ""
        #: Decoded values, shared with the other readers of the store.
        self.decoded = _decoded

    def keep(self, frame: Frame) -> Frame:
        """``frame``, without its payload where enough payloads are kept and the store has it."""
        if self._store is None or not frame.source or frame.left:
            return frame
        while self._kept.dropped:
            self._kept.bytes -= self._kept.dropped.popleft()
        if self._kept.bytes + len(frame.payload) > self._kept_bytes:
            return Frame(frame.kind, frame.schema, b"", frame.offset, frame.source, len(frame.payload))
        self._kept.bytes += len(frame.payload)
        return frame

    def drop(self, frame: Frame) -> None:
        """A frame that was kept is no longer needed."""
        if self._store is not None and frame.source and not frame.left:
            self._kept.dropped.append(len(frame.payload))

    def ahead(self, frames: Sequence[Frame]) -> None:
        """Fetch what is needed next all at once, as far as memory allows; for stores that answer late."""
        self._ahead = {}
        if self._store is None or self._store.policy.reads_in_place:
            return
        wanted, left = [], _FETCHED_BYTES
        for frame in frames:
            if frame.left and left > 0:
                wanted.append(frame)
                left -= frame.left
        if len(wanted) > 1:
            found = self._store.read_many([(frame.source, *frame.left_at) for frame in wanted])
            self._ahead = {
                (frame.source, frame.offset): data
                for frame, data in zip(wanted, found, strict=True)
                if data is not None
            }

    def get(self, frame: Frame) -> bytes | memoryview:
        """The payload of a frame.

        Raises:
            DamagedDataError: It was removed or cut off since.
            CompactedError: The run was compacted since.
        """
        if not frame.left:
            return frame.payload
        fetched = self._ahead.pop((frame.source, frame.offset), None)
        data = fetched if fetched is not None else self._read(frame)
        if len(data) != frame.left:
            raise DamagedDataError("it was cut off after it was found")
        return data

    def _read(self, frame: Frame) -> bytes | memoryview:
        assert self._store is not None
        begin, end = frame.left_at
        try:
            if not self._store.policy.reads_in_place or frame.source == self.newest:
                return self._store.read(frame.source, begin, end)
            return self._kept.mapped(self._store, frame.source)[begin:end]
        except MissingFileError as error:
            if newest_generation(self._store) is not None:
                raise compacted_meanwhile(self._store) from error
            raise DamagedDataError("it was removed after it was found") from error


#: Called with an invalid frame.
OnProblem = Callable[[Frame, DamagedDataError], None]
