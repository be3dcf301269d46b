"""The contents of a run by worker, found by listing alone, and a store that uses that listing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watchglass.store import Store, StoredObject, WrapperStore, attempts, layout, newest_generation

_SEGMENTS = re.compile(re.escape(layout.segments(0)).replace("0000", "[0-9]+"))
#: A segment as it travels: worker, attempt, flush bucket, number, bytes.
Row = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class RunContents:
    """The workers of a run and how much they wrote."""

    run: str  #: Location of the run.
    workers: Mapping[str, int]  #: Bytes by worker, over all attempts, compacted data included; in the order of workers.
    objects: int  #: Number of objects that hold them, which a listing of the whole run names.
    #: All segments of each worker, for the process that reads it. None where each process lists the run itself: in a
    #: folder, which may have grown by then and is listed in one call.
    segments: Mapping[str, tuple[Row, ...]] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all workers."""
        return sum(self.workers.values())


def contents_of(store: Store, run: str, *, most_listed: int = 0) -> RunContents:
    """The contents of a run.

    Args:
        store: The store of the run.
        run: The location of the run for other processes.
        most_listed: Most segments that are kept, where the store is no folder.

    Raises:
        NotARunError, StoreError: It is no run, or the store refused.
    """
    sizes: dict[str, int] = {}
    segments: dict[str, list[Row]] = {}
    objects = 0
    keeps = not store.policy.cheap_lookups
    generation = newest_generation(store)
    covered = {(each.attempt, each.worker): each.segments for each in generation.covers} if generation else {}
    if generation is not None:
        for entry in store.list(layout.generation(generation.number)):
            objects += 1
            worker = _compacted_worker(entry.path)
            if worker:
                sizes[worker] = sizes.get(worker, 0) + entry.size
    for attempt in range(len(attempts(store))):
        for entry in store.list(layout.segments(attempt)):
            name = layout.parse_segment(entry.path)
            if name is None or name.seq < covered.get((attempt, name.worker), 0):
                continue
            objects += 1
            sizes[name.worker] = sizes.get(name.worker, 0) + entry.size
            keeps = keeps and objects <= most_listed
            if keeps:
                row = (name.worker, attempt, name.bucket, name.seq, entry.size)
                segments.setdefault(name.worker, []).append(row)
    ordered = sorted(sizes, key=layout.worker_order)
    listed = {worker: tuple(segments.get(worker, ())) for worker in ordered} if keeps else None
    return RunContents(run, {worker: sizes[worker] for worker in ordered}, objects, listed)


def _compacted_worker(path: str) -> str:
    """The worker whose data an object of a generation holds; "" for none."""
    name, _, kind = path.rpartition("/")[2].partition(".")
    if kind == "frames":
        return name
    return name.rpartition("-")[0] if kind == "parquet" else ""


class ListedStore(WrapperStore):
    """A store that lists only the segments that were listed before; everything else comes from the store behind it.

    A process that reads some workers of a thousand then lists none of them. For object stores: there a listing costs a
    request for each page of names, and a listed segment never changes.

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
        """See :meth:`Store.list`; the segments of an attempt are those of :attr:`RunContents.segments`."""
        if not _SEGMENTS.fullmatch(prefix):
            return super().list(prefix, after)
        return [entry for entry in self._segments.get(prefix, ()) if entry.path > after]
