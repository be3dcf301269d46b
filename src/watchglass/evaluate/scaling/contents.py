"""What a run holds of each worker, told by listing alone: no segment is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchglass.evaluate.scaling.listed import Row
from watchglass.store import Store, attempts, layout, newest_generation


@dataclass(frozen=True)
class RunContents:
    """The workers of a run and how much they wrote.

    Attributes:
        run: Location of the run.
        workers: Bytes by worker, over all attempts, compacted data included; in the order of workers.
        objects: Objects that hold them: what every look at the whole run has to list.
        segments: All segments of each worker, to be handed on to whoever reads it; None where everybody lists by
            himself: in a folder, which may have grown by then and is listed at once.
    """

    run: str
    workers: Mapping[str, int]
    objects: int
    segments: Mapping[str, tuple[Row, ...]] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all workers."""
        return sum(self.workers.values())


def contents_of(store: Store, run: str, *, most_listed: int = 0) -> RunContents:
    """The contents of a run.

    Args:
        store: The store of the run.
        run: What the run is called elsewhere.
        most_listed: The segments are kept where the store is no folder and these are not more than so many.

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
