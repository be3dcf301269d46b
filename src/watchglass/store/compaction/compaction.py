"""Compaction: segments of trainings that have ended become Parquet and one object of frames per worker.

A generation is written whole, read back, and only then made valid by its manifest; what it replaces is deleted last. So
a run can be read at every moment, and whoever comes next finishes what a crash left behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from watchglass.errors import DamagedDataError, MissingFileError, RunExistsError, StoreError
from watchglass.store import layout, manifest
from watchglass.store.claim import Claim, claims_of_workers, is_alive
from watchglass.store.compaction.condensing import Condensed, UnfitError, check_condensed, condense
from watchglass.store.compaction.generations import Covered, Generation, generation_numbers, newest_generation
from watchglass.store.compaction.lease import CompactionLease
from watchglass.store.compaction.pins import PinRecord, pins
from watchglass.store.contract import Store
from watchglass.store.liveness import Attendance
from watchglass.store.rings.places import owners_of_rings
from watchglass.store.spool.folder import spool_exists


@dataclass
class Compaction:
    """What a compaction did.

    Attributes:
        generation: Number of the generation that counts now; 0 where there is none.
        written: Whether it was written by this compaction; else there was nothing new to compact.
        rows: Rows of statistics in it, as far as they were written now.
        before_bytes: What was compacted: segments and the earlier generation.
        after_bytes: What stands in their place.
        statistics_bytes: Of these, statistics.
        deleted: Objects that were deleted, and their bytes.
        kept: What was left as it is, each with the reason, in a sentence.
        objects: Objects that were written, each with its length.
    """

    generation: int = 0
    written: bool = False
    rows: int = 0
    before_bytes: int = 0
    after_bytes: int = 0
    statistics_bytes: int = 0
    deleted: tuple[int, int] = (0, 0)
    kept: list[str] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict, repr=False)


@dataclass
class _Worker:
    """The segments of one worker behind what the newest generation holds of it."""

    attempt: int
    name: str
    covered: Covered | None
    segments: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return self.covered.segments if self.covered is not None else 0


def compact(
    store: Store, *, even_if_unseen: bool = False, tick: Callable[[], None] = lambda: None, must: bool = False
) -> Compaction:
    """Compact the attempts whose training has ended, and delete what that replaces as far as nobody reads it.

    Memory is bounded by a block of statistics, some 600 MiB at most, whatever the size of the run.

    Args:
        store: The store of a run.
        even_if_unseen: Also attempts of workers whose process cannot be seen from here and never said that it ended.
        tick: Called now and then.
        must: Raise where there is something to compact and none of it may be.

    Raises:
        RunExistsError: Another process compacts it, or (with ``must``) it is still being written.
        StoreError: The store refused. Nothing is lost; it may be done again.
        DamagedDataError: The newest generation makes no sense.
    """
    manifest.read_manifest(store)
    with CompactionLease(store) as lease:

        def alive() -> None:
            lease.tick()
            tick()

        newest = newest_generation(store)
        result = Compaction(newest.number if newest is not None else 0)
        workers = _workers(store, newest)
        new = _fit(store, workers, even_if_unseen, result.kept)
        if new:
            newest = _write(store, newest, workers, new, lease, alive, result) or newest
        reasons = list(result.kept)
        if newest is not None:
            _clean(store, newest, lease, result)
        if must and reasons and not result.written and not result.deleted[0]:
            raise RunExistsError(f"{store.location} cannot be compacted yet: {reasons[0]}")
        return result


def _workers(store: Store, newest: Generation | None) -> dict[tuple[int, str], _Worker]:
    """All workers with segments or compacted data, by attempt, then rank."""
    found: dict[tuple[int, str], _Worker] = {}
    for covered in newest.covers if newest is not None else ():
        found[covered.attempt, covered.worker] = _Worker(covered.attempt, covered.worker, covered)
    for attempt in manifest.attempts(store):
        for entry in store.list(layout.segments(attempt)):
            name = layout.parse_segment(entry.path)
            if name is None or name.attempt != attempt:
                continue
            worker = found.setdefault((attempt, name.worker), _Worker(attempt, name.worker, None))
            # Of two segments with one number the later bucket counts, and listings are sorted.
            if name.seq >= worker.first:
                worker.segments[name.seq], worker.sizes[name.seq] = entry.path, entry.size
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], layout.worker_order(key[1])))}


def _fit(
    store: Store, workers: dict[tuple[int, str], _Worker], even_if_unseen: bool, kept: list[str]
) -> set[tuple[int, str]]:
    """Workers with segments that can be compacted now."""
    fit: set[tuple[int, str]] = set()
    for attempt in sorted({key[0] for key in workers}):
        pending = [key for key, worker in workers.items() if key[0] == attempt and worker.segments]
        if not pending:
            continue
        reason = _still_written(store, attempt, even_if_unseen)
        if reason:
            kept.append(f"attempt {attempt} stays as it is: {reason}")
            continue
        for key in pending:
            worker = workers[key]
            hole = next(seq for seq in range(worker.first, worker.first + len(worker.segments) + 1)
                        if seq not in worker.segments)  # fmt: skip
            if hole <= max(worker.segments):
                kept.append(f"{worker.name} of attempt {attempt} stays as it is: its segment {hole} is missing")
            else:
                fit.add(key)
    return fit


def _still_written(store: Store, attempt: int, even_if_unseen: bool) -> str:
    """Why something may still be written to an attempt; "" where all its workers have ended."""
    attendance = Attendance(store)
    attendance.look(attempt)
    claims = claims_of_workers(store, attempt)
    for worker in claimed_workers(store, attempt):
        of_worker = claims.get(worker)
        if not of_worker:
            return f"the claim of {worker} cannot be read"
        reason = _may_write(store, worker, of_worker)
        if reason and not (even_if_unseen and is_alive(of_worker[-1]) is None):
            if is_alive(of_worker[-1]) is None and has_ended(attendance, attempt, worker, of_worker[-1]):
                continue
            return reason
    return ""


def claimed_workers(store: Store, attempt: int) -> list[str]:
    """Workers of an attempt that have a claim, be it readable or not, in order of rank."""
    found = {parsed[1] for entry in store.list(layout.workers(attempt)) if (parsed := layout.parse_claim(entry.path))}
    return sorted(found, key=layout.worker_order)


def has_ended(attendance: Attendance, attempt: int, worker: str, newest: Claim) -> bool:
    """Whether the launch of a worker's newest claim has ended: not an earlier one, after which it was started again."""
    end = attendance.launch_ended(attempt, worker)
    return end is not None and end.wall_ns >= newest.wall_ns


def _may_write(store: Store, worker: str, claims: list[Claim]) -> str:
    newest = claims[-1]
    alive = is_alive(newest)
    if alive:
        return f"{worker} is process {newest.pid}, which is running; wait for it to end"
    if alive is None:
        return (
            f"{worker} is process {newest.pid} on {newest.host}, which cannot be seen from here; "
            f"compact it there, or say --force once that process has ended"
        )
    gone = [claim for claim in claims if is_alive(claim) is False]
    if any(owners_of_rings(store, each.rings) or (each.spool and spool_exists(each.spool)) for each in gone):
        return f"what {worker} recorded last has not been recovered yet; run `watchglass check` on this machine first"
    return ""


def _write(
    store: Store,
    newest: Generation | None,
    workers: dict[tuple[int, str], _Worker],
    new: set[tuple[int, str]],
    lease: CompactionLease,
    tick: Callable[[], None],
    result: Compaction,
) -> Generation | None:
    """Write a generation of everything that was compacted before and what is new; None where nothing new was fit."""
    number = max(generation_numbers(store), default=0) + 1
    covers: list[Covered] = []
    written: list[Condensed] = []
    own: dict[str, int] = {}
    try:
        for key, worker in workers.items():
            covered, condensed = _condense_fit(store, number, worker, new, key, tick, result, own)
            if covered is not None:
                covers.append(covered)
                written.append(condensed)
        _check_unchanged(store, [workers[key] for key in sorted(new)])
    except (StoreError, RunExistsError, UnfitError) as error:
        with suppress(StoreError):
            _delete_own(store, own)
        if not isinstance(error, UnfitError):
            raise
        result.kept.append(f"what was compacted before cannot be compacted again: {error}")
        new.clear()
    if not new:
        _delete_own(store, own)
        store.prune(layout.generation(number))
        return None
    result.before_bytes += sum(sum(workers[key].sizes.values()) for key in new)
    generation = Generation(number, time.time_ns(), tuple(covers))
    content = json.dumps(generation.to_json()).encode()
    lease.check()
    _write_manifest(store, number, content)
    result.generation, result.written = number, True
    result.objects = own
    if newest is not None:
        result.before_bytes += sum(entry.size for entry in store.list(layout.generation(newest.number)))
    for condensed in written:
        result.rows += condensed.rows
        result.statistics_bytes += condensed.statistics_bytes
        result.after_bytes += condensed.statistics_bytes + condensed.frames_bytes
    result.after_bytes += len(content)
    return generation


def _condense_fit(
    store: Store,
    number: int,
    worker: _Worker,
    new: set[tuple[int, str]],
    key: tuple[int, str],
    tick: Callable[[], None],
    result: Compaction,
    own: dict[str, int],
) -> tuple[Covered | None, Condensed]:
    """What was compacted of a worker before, and its segments where it is among the new ones and they are sound.

    Raises:
        UnfitError: Not even what was compacted before is sound.
    """
    earlier = [worker.covered.frames] if worker.covered is not None else []
    if key in new:
        try:
            segments = list(dict(sorted(worker.segments.items())).values())
            return _condense(store, number, worker, [*earlier, *segments], worker.first + len(segments), tick, own)
        except UnfitError as error:
            result.kept.append(f"{worker.name} of attempt {worker.attempt} stays as it is: {error}")
            new.discard(key)
            stem = layout.compacted_frames(number, worker.attempt, worker.name).removesuffix(".frames")
            _delete_own(store, own, (f"{stem}.", f"{stem}-"))
    return _condense(store, number, worker, earlier, worker.first, tick, own) if earlier else (None, Condensed())


def _condense(
    store: Store,
    number: int,
    worker: _Worker,
    sources: Sequence[str],
    count: int,
    tick: Callable[[], None],
    own: dict[str, int],
) -> tuple[Covered, Condensed]:
    try:
        condensed = condense(store, number, worker.attempt, worker.name, sources, tick, own)
    except MissingFileError as error:
        raise StoreError(f"{error}; another process removed it, run it again") from error
    frames = layout.compacted_frames(number, worker.attempt, worker.name)
    return Covered(worker.attempt, worker.name, count, frames, condensed.frames_bytes), condensed


def _check_unchanged(store: Store, workers: Sequence[_Worker]) -> None:
    """Segments that grew since they were listed have a writer, whatever its claim looks like from here.

    It may be in another container, or on another machine of the same name. What it appends to a segment that is
    compacted would be lost.

    Raises:
        RunExistsError: One grew.
    """
    for worker in workers if store.appends else ():
        for seq, path in worker.segments.items():
            if store.size(path) != worker.sizes[seq]:
                raise RunExistsError(
                    f"{worker.name} of attempt {worker.attempt} of {store.location} is still being written: {path} has "
                    "changed; wait for its process to end"
                )


def _write_manifest(store: Store, number: int, content: bytes) -> None:
    path = layout.generation_manifest(number)
    try:
        store.write(path, content)
    except RunExistsError:
        if store.read(path) != content:  # else only the answer to our own request was lost
            raise


def _clean(store: Store, newest: Generation, lease: CompactionLease, result: Compaction) -> None:
    """Delete what the newest generation replaces, unless somebody still reads it."""
    now_ns = time.time_ns()
    held: list[PinRecord] = []
    for each in pins(store):
        if each.holds(now_ns):
            held.append(each)
        else:
            store.delete(each.path)
    objects, size = 0, 0
    readers = [each for each in held if each.generation < newest.number]
    replaced = list(_replaced(store, newest))
    if readers and replaced:
        first = readers[0]
        result.kept.append(
            f"what was compacted stays beside it for now: process {first.holder.pid} on {first.holder.host} "
            f"reads it (and {len(readers) - 1} more); compact again when it has ended"
        )
        return
    _check_newest(store, newest, result.objects)
    if replaced and not result.written:
        _check_whole(store, newest, lease.tick)
    for path, length in replaced:
        lease.tick()
        store.delete(path)
        objects, size = objects + 1, size + length
    result.deleted = objects, size
    store.prune(layout.COMPACTED)
    for attempt in sorted({each.attempt for each in newest.covers}):
        store.prune(layout.segments(attempt))


def _check_newest(store: Store, newest: Generation, own: dict[str, int]) -> None:
    """Nothing is deleted for the sake of a generation that is not the newest, or of which an object is missing."""
    now = newest_generation(store)
    if now is None or now.number != newest.number:
        raise RunExistsError(f"another process compacted {store.location} in the meantime; nothing was lost")
    sizes = {entry.path: entry.size for entry in store.list(layout.generation(newest.number))}
    for path, size in ({covered.frames: covered.bytes for covered in newest.covers} | own).items():
        if sizes.get(path) != size:
            raise DamagedDataError(f"{path} of {store.location} is missing or cut off; nothing was deleted")


def _check_whole(store: Store, newest: Generation, tick: Callable[[], None]) -> None:
    """The same for a generation of an earlier process: it was read back then, but that may be long ago."""
    try:
        for covered in newest.covers:
            check_condensed(store, covered.frames, tick)
    except (UnfitError, MissingFileError) as error:
        raise DamagedDataError(f"{error}; nothing of {store.location} was deleted") from error


def _replaced(store: Store, newest: Generation) -> Iterator[tuple[str, int]]:
    """Objects that the newest generation stands in place of, each with its size."""
    covers = {(each.attempt, each.worker): each.segments for each in newest.covers}
    for attempt in sorted({attempt for attempt, _ in covers}):
        for entry in store.list(layout.segments(attempt)):
            name = layout.parse_segment(entry.path)
            if name is not None and name.seq < covers.get((attempt, name.worker), 0):
                yield entry.path, entry.size
    for number in generation_numbers(store):
        if number < newest.number:
            # Its manifest last, as if it had always been there.
            entries = store.list(layout.generation(number))
            for entry in sorted(entries, key=lambda entry: entry.path == layout.generation_manifest(number)):
                yield entry.path, entry.size


def _delete_own(store: Store, own: dict[str, int], stems: tuple[str, ...] = ("",)) -> None:
    """Delete what this process wrote into a generation that has no manifest yet, and nothing of anybody else.

    A process that was asleep may find that another one has taken its lease and its number since.
    """
    for path in [path for path in own if path.startswith(stems)]:
        store.delete(path)
        del own[path]
