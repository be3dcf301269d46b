"""The store of a run whose segments were listed elsewhere: nobody needs to list a thousand workers to read some."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from watchglass.store import Buffer, Content, Entry, Store, layout

_SEGMENTS = re.compile(re.escape(layout.segments(0)).replace("0000", "[0-9]+"))
#: A segment as it travels: worker, attempt, flush bucket, number, bytes.
Row = tuple[str, int, int, int, int]


class ListedStore(Store):
    """Another store, of whose segments only those are there that were listed before. Everything else is asked of it.

    For object stores, where a listing costs a request for each page of names, and nothing that was listed changes.

    Args:
        store: The store, which stays open.
        rows: The segments.
    """

    def __init__(self, store: Store, rows: Iterable[Row]) -> None:
        self._store = store
        self.appends, self.location = store.appends, store.location
        self._segments: dict[str, list[Entry]] = {}
        for worker, attempt, bucket, seq, size in rows:
            path = layout.segment(attempt, bucket, worker, seq)
            self._segments.setdefault(layout.segments(attempt), []).append(Entry(path, size))
        for entries in self._segments.values():
            entries.sort(key=lambda entry: entry.path)

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See :meth:`Store.read`."""
        return self._store.read(path, start, end)

    def read_many(self, ranges: Sequence[tuple[str, int, int | None]]) -> Sequence[bytes | None]:
        """See :meth:`Store.read_many`."""
        return self._store.read_many(ranges)

    def map(self, path: str) -> Buffer:
        """See :meth:`Store.map`."""
        return self._store.map(path)

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """See :meth:`Store.write`."""
        self._store.write(path, data, replace=replace)

    def append(self, path: str, data: bytes) -> None:
        """See :meth:`Store.append`."""
        self._store.append(path, data)

    def list(self, prefix: str = "", after: str = "") -> list[Entry]:
        """See :meth:`Store.list`; segments of an attempt are those that were listed."""
        if not _SEGMENTS.fullmatch(prefix):
            return self._store.list(prefix, after)
        return [entry for entry in self._segments.get(prefix, ()) if entry.path > after]

    def delete(self, path: str) -> None:
        """See :meth:`Store.delete`."""
        self._store.delete(path)

    def size(self, path: str) -> int | None:
        """See :meth:`Store.size`."""
        return self._store.size(path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See :meth:`Store.folders`."""
        return self._store.folders(prefix)
