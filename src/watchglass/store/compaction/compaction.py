"""Compaction: segments of ended runs become Parquet and one object of frames per worker.

A generation is written whole, read back, and only then made valid by its manifest; the objects that it replaces are
deleted last. So a run can be read at every moment, and the next compaction finishes what a crash left behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from watchglass.errors import DamagedDataError, MissingFileError, RunExistsError, StoreError
from watchglass.store import layout, manifest
from watchglass.store.claim import Claim, is_alive
from watchglass.store.compaction.lease import CompactionLease
from watchglass.store.compaction.pins import PinRecord, pins
from watchglass.store.compaction.segment_compactor import BLOCK_ROWS, UnfitError, check_condensed, condense
from watchglass.store.contract import Store, StoredObject
from watchglass.store.generations import Covered, Generation, generation_numbers, newest_generation
from watchglass.store.liveness import claimed
from watchglass.store.rings.ring_paths import owners_of_rings
from watchglass.store.spool.folder import spool_exists


@dataclass
class Compaction:
    """The result of a compaction."""

    generation: int = 0  #: Number of the generation that counts now; 0 where there is none.
    written: bool = False  #: Whether it was written by this compaction; else there was nothing new to compact.
    rows: int = 0  #: Rows of statistics in it, as far as they were written now.
    before_bytes: int = 0  #: Bytes of the segments and the earlier generation that were compacted.
    after_bytes: int = 0  #: Bytes of the objects that replace them.
    statistics_bytes: int = 0  #: Of these, statistics.
    deleted: tuple[int, int] = (0, 0)  #: Objects that were deleted, and their bytes.
    #: What was not compacted or deleted, each with the reason, in a sentence.
    kept: list[str] = field(default_factory=list)
    #: Objects that were written, each with its length.
    objects: dict[str, int] = field(default_factory=dict, repr=False)


@dataclass
class _WorkerSegments:
    """The segments of one worker behind what the newest generation holds of it, and whether they are compacted now."""

    attempt: int
    name: str
    covered: Covered | None
    segments: dict[int, StoredObject] = field(default_factory=dict)
    fit: bool = False

    @property
    def first(self) -> int:
        return self.covered.segments if self.covered is not None else 0


def compact(
    store: Store, *, even_if_unseen: bool = False, tick: Callable[[], None] = lambda: None, must: bool = False,
    block_rows: int = BLOCK_ROWS,
) -> Compaction:  # fmt: skip
    """Compact the attempts whose training has ended, and delete what that replaces as far as no reader needs it.

    Memory is bounded by a block of statistics, at most about 600 MiB, for a run of any size.

    Args:
        store: The store of a run.
        even_if_unseen: Also attempts of workers on other machines that never reported their end.
        tick: Called from time to time.
        must: Raise where there is something to compact and none of it may be.
        block_rows: Rows of statistics after which a file ends, with the first whole step.

    Raises:
        RunExistsError: Another process compacts it, or (with ``must``) it is still being written.
        StoreError: The store refused. Nothing is lost; it may be done again.
        DamagedDataError: The newest generation makes no sense.
    """
    manifest.read_manifest(store)
    with CompactionLease(store) as lease:
        compactor = _Compactor(store, lease, tick, block_rows)
        compactor.choose(even_if_unseen)
        compactor.write()
        result = compactor.result
        reasons = list(result.kept)
        compactor.clean()
        if must and reasons and not result.written and not result.deleted[0]:
            raise RunExistsError(f"{store.location} cannot be compacted yet: {reasons[0]}")
        return result


class _Compactor:
    """One compaction by the holder of the lease: chooses what is fit, writes a generation, deletes what it replaces."""

    def __init__(self, store: Store, lease: CompactionLease, tick: Callable[[], None], block_rows: int) -> None:
        self._store, self._lease, self._also, self._block_rows = store, lease, tick, block_rows
        self._newest = newest_generation(store)
        self.result = Compaction(self._newest.number if self._newest is not None else 0)
        self._workers = self._found()

    def _tick(self) -> None:
        self._lease.tick()
        self._also()

    def _found(self) -> list[_WorkerSegments]:
        """All workers with segments or compacted data, by attempt, then rank."""
        covers = self._newest.covers if self._newest is not None else ()
        found = {(each.attempt, each.worker): _WorkerSegments(each.attempt, each.worker, each) for each in covers}
        for attempt in manifest.attempts(self._store):
            for entry in self._store.list(layout.segments(attempt)):
                name = layout.parse_segment(entry.path)
                if name is None or name.attempt != attempt:
                    continue
                worker = found.setdefault((attempt, name.worker), _WorkerSegments(attempt, name.worker, None))
                # Of two segments with one number the later bucket counts, and listings are sorted.
                if name.seq >= worker.first:
                    worker.segments[name.seq] = entry
        return sorted(found.values(), key=lambda worker: (worker.attempt, layout.worker_order(worker.name)))

    def choose(self, even_if_unseen: bool) -> None:
        """Choose the workers whose segments can be compacted now."""
        for attempt in sorted({worker.attempt for worker in self._workers if worker.segments}):
            reason = _still_written(self._store, attempt, even_if_unseen)
            if reason:
                self.result.kept.append(f"attempt {attempt} is not compacted: {reason}")
                continue
            for worker in self._workers:
                if worker.attempt == attempt and worker.segments:
                    hole = next(seq for seq in count(worker.first) if seq not in worker.segments)
                    worker.fit = hole > max(worker.segments)
                    if not worker.fit:
                        self._keep(worker, f"its segment {hole} is missing")

    def write(self) -> None:
        """Write a generation of everything that was compacted before and what is chosen; none where nothing is fit."""
        if not any(worker.fit for worker in self._workers):
            return
        store, result = self._store, self.result
        number = max(generation_numbers(store), default=0) + 1
        found: list[tuple[Covered, int]] = []
        try:
            for worker in self._workers:
                found += self._condensed(number, worker)
            self._check_unchanged()
        except (StoreError, RunExistsError, UnfitError) as error:
            if not isinstance(error, UnfitError):
                with suppress(StoreError):
                    self._delete_own()
                raise
            result.kept.append(f"earlier compacted data cannot be compacted again: {error}")
            for worker in self._workers:
                worker.fit = False
        if not any(worker.fit for worker in self._workers):
            self._delete_own()
            store.prune(layout.generation(number))
            return
        generation = Generation(number, time.time_ns(), tuple(covered for covered, _ in found))
        content = json.dumps(generation.to_json()).encode()
        self._lease.check()
        store.write(layout.generation_manifest(number), content)
        result.generation, result.written = number, True
        result.rows = sum(rows for _, rows in found)
        result.before_bytes = sum(
            entry.size for worker in self._workers if worker.fit for entry in worker.segments.values()
        )
        if self._newest is not None:
            result.before_bytes += sum(entry.size for entry in store.list(layout.generation(self._newest.number)))
        result.after_bytes = sum(result.objects.values()) + len(content)
        result.statistics_bytes = sum(size for path, size in result.objects.items() if path.endswith(".parquet"))
        self._newest = generation

    def _condensed(self, number: int, worker: _WorkerSegments) -> list[tuple[Covered, int]]:
        """The part of a generation for a worker, with its rows of statistics; without unsound segments.

        Raises:
            UnfitError: Not even what was compacted before is sound.
        """
        earlier = [worker.covered.frames] if worker.covered is not None else []
        frames = layout.compacted_frames(number, worker.attempt, worker.name)
        while earlier or worker.fit:
            new = [entry.path for _, entry in sorted(worker.segments.items())] if worker.fit else []
            try:
                sources, objects = [*earlier, *new], self.result.objects
                rows = condense(
                    self._store, number, worker.attempt, worker.name, sources, self._tick, objects, self._block_rows
                )
            except MissingFileError as error:
                raise StoreError(f"{error}; another process removed it, run it again") from error
            except UnfitError as error:
                if not worker.fit:
                    raise
                worker.fit = False
                self._keep(worker, str(error))
                stem = frames.removesuffix(".frames")
                self._delete_own((f"{stem}.", f"{stem}-"))
                continue
            size = self.result.objects[frames]
            return [(Covered(worker.attempt, worker.name, worker.first + len(new), frames, size), rows)]
        return []

    def _check_unchanged(self) -> None:
        """Make sure that no segment grew since it was listed: else its writer lives, whatever its claim states.

        The writer may be in another container, or on another machine of the same name. What it appends to a compacted
        segment would be lost.

        Raises:
            RunExistsError: One grew.
        """
        for worker in self._workers if self._store.policy.segments_grow else ():
            for entry in worker.segments.values() if worker.fit else ():
                if self._store.size(entry.path) != entry.size:
                    raise RunExistsError(
                        f"{worker.name} of attempt {worker.attempt} of {self._store.location} is still being written: "
                        f"{entry.path} has changed; wait for its process to end"
                    )

    def clean(self) -> None:
        """Delete the objects that the newest generation replaces, unless a reader still needs them."""
        if self._newest is None:
            return
        store, newest, now_ns = self._store, self._newest, time.time_ns()
        readers: list[PinRecord] = []
        for each in pins(store):
            if not each.holds(now_ns):
                store.delete(each.path)
            elif each.generation < newest.number:
                readers.append(each)
        replaced = list(_replaced(store, newest))
        if readers and replaced:
            holder = readers[0].holder
            self.result.kept.append(
                f"the compacted segments are not deleted yet: process {holder.pid} on {holder.host} "
                f"reads them (and {len(readers) - 1} more); compact again when it has ended"
            )
            return
        self._check_newest(newest, whole=bool(replaced) and not self.result.written)
        for entry in replaced:
            self._lease.tick()
            store.delete(entry.path)
        self.result.deleted = len(replaced), sum(entry.size for entry in replaced)
        store.prune(layout.COMPACTED)
        for attempt in sorted({each.attempt for each in newest.covers}):
            store.prune(layout.segments(attempt))

    def _check_newest(self, newest: Generation, *, whole: bool) -> None:
        """Make sure that this is the newest generation and that all its objects are there, before anything is deleted.

        Args:
            newest: What should be the newest generation.
            whole: An earlier process wrote it and may have read it back long ago: check its content again.
        """
        store, now = self._store, newest_generation(self._store)
        if now is None or now.number != newest.number:
            raise RunExistsError(f"another process compacted {store.location} in the meantime; nothing was lost")
        sizes = {entry.path: entry.size for entry in store.list(layout.generation(newest.number))}
        for path, size in ({each.frames: each.bytes for each in newest.covers} | self.result.objects).items():
            if sizes.get(path) != size:
                raise DamagedDataError(f"{path} of {store.location} is missing or cut off; nothing was deleted")
        try:
            for each in newest.covers if whole else ():
                check_condensed(store, each.frames, self._tick)
        except (UnfitError, MissingFileError) as error:
            raise DamagedDataError(f"{error}; nothing of {store.location} was deleted") from error

    def _keep(self, worker: _WorkerSegments, reason: str) -> None:
        self.result.kept.append(f"{worker.name} of attempt {worker.attempt} is not compacted: {reason}")

    def _delete_own(self, stems: tuple[str, ...] = ("",)) -> None:
        """Delete the objects that this process wrote into a generation without a manifest, and no others.

        After a long pause of this process another one may have taken its lease and its number.
        """
        own = self.result.objects
        for path in [path for path in own if path.startswith(stems)]:
            self._store.delete(path)
            del own[path]


def _still_written(store: Store, attempt: int, even_if_unseen: bool) -> str:
    """The reason why an attempt may still be written to; "" where all its workers have ended."""
    for worker, claims, ended in claimed(store, attempt):
        if not claims:
            return f"the claim of {worker} cannot be read"
        if (even_if_unseen or ended) and is_alive(claims[-1]) is None:
            continue
        reason = _may_write(store, worker, claims)
        if reason:
            return reason
    return ""


def _may_write(store: Store, worker: str, claims: list[Claim]) -> str:
    newest = claims[-1]
    alive = is_alive(newest)
    if alive:
        return f"{worker} is process {newest.pid}, which is running; wait for it to end"
    if alive is None:
        return (
            f"{worker} is process {newest.pid} on {newest.host}, which is not visible from this machine; "
            f"compact it there, or use --force once that process has ended"
        )
    gone = [claim for claim in claims if is_alive(claim) is False]
    if any(owners_of_rings(store, each.rings) or (each.spool and spool_exists(each.spool)) for each in gone):
        return f"the last records of {worker} are not recovered yet; run `watchglass check` on this machine first"
    return ""


def _replaced(store: Store, newest: Generation) -> Iterator[StoredObject]:
    """Objects that the newest generation replaces."""
    covers = {(each.attempt, each.worker): each.segments for each in newest.covers}
    for attempt in sorted({attempt for attempt, _ in covers}):
        for entry in store.list(layout.segments(attempt)):
            name = layout.parse_segment(entry.path)
            if name is not None and name.seq < covers.get((attempt, name.worker), 0):
                yield entry
    for number in generation_numbers(store):
        if number < newest.number:
            # Its manifest last, as if it had always been there.
            entries = store.list(layout.generation(number))
            yield from sorted(entries, key=lambda entry: entry.path == layout.generation_manifest(number))
