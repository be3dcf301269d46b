"""The store of a run whose segments were listed elsewhere: nobody needs to list a thousand workers to read some."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchglass.store import Store, StoredObject, WrapperStore, layout

_SEGMENTS = re.compile(re.escape(layout.segments(0)).replace("0000", "[0-9]+"))
#: A segment as it travels: worker, attempt, flush bucket, number, bytes.
Row = tuple[str, int, int, int, int]


class ListedStore(WrapperStore):
    """Another store, of whose segments only those are there that were listed before. Everything else is asked of it.

    For object stores, where a listing costs a request for each page of names, and nothing that was listed changes.

    Args:
        store: The store, which stays open.
        rows: The segments.
    """

    def __init__(self, store: Store, rows: Iterable[Row]) -> None:
        super().__init__(store)
        self._segments: dict[str, list[StoredObject]] = {}
        for worker, attempt, bucket, seq, size in rows:
            path = layout.segment(attempt, bucket, worker, seq)
            self._segments.setdefault(layout.segments(attempt), []).append(StoredObject(path, size))
        for entries in self._segments.values():
            entries.sort(key=lambda entry: entry.path)

    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        """See :meth:`Store.list`; segments of an attempt are those that were listed."""
        if not _SEGMENTS.fullmatch(prefix):
            return super().list(prefix, after)
        return [entry for entry in self._segments.get(prefix, ()) if entry.path > after]
