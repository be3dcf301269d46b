"""Reading a run while it is written, or after."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from watchglass.config import Clock
from watchglass.errors import CompactedError, DamagedDataError, MissingFileError, StoreError
from watchglass.store import layout
from watchglass.store.contract import Store, StoredObject
from watchglass.store.encoding.frames import HEADER_BYTES, MAX_PAYLOAD, Frame, FrameKind, frame_length, scan
from watchglass.store.generations import Covered, Generation, newest_generation
from watchglass.store.segment_discovery import SegmentDiscovery

#: Bytes read at a time. A frame that is longer is read separately.
_CHUNK = 4 << 20
#: Least bytes that a poll reads of a worker, if it reads any.
_SHARE = 64 << 10
#: Most objects in one request: if one of them fails, the whole request fails.
_MOST_AT_ONCE = 128
#: Shorter objects are read, because mapping costs as much as copying this number of bytes.
_MAPPED = 256 << 10


@dataclass(frozen=True)
class Problem:
    """Something in a run that cannot be read."""

    path: str  #: The object.
    offset: int  #: Where in it, in bytes.
    what: str  #: The damage, without a subject.

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}: {self.what}"


@dataclass
class _Sequence:
    """The segments of one worker of one attempt (or of a stream, or of the journal), read in order."""

    paths: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    seq: int = 0
    offset: int = 0
    tail: str | None = None
    """The reason why reading of the current segment stopped early, None when all of it was read."""
    seen: int = -1
    """Size of the current segment when it was last read."""
    taken: int = 0
    """Bytes read so far."""

    def found(self, seq: int, entry: StoredObject) -> None:
        """Note a listed segment. Of two with one number the later bucket counts: the first was a write that failed."""
        known = self.paths.get(seq, "")
        if seq < self.seq or entry.path < known:
            return
        if known and entry.path != known and seq == self.seq:
            self.offset, self.tail, self.seen = 0, None, -1
        self.paths[seq], self.sizes[seq] = entry.path, entry.size

    def is_ready(self) -> bool:
        """Whether it has bytes that were not read yet."""
        return self.seq in self.paths and (self.seq + 1 in self.paths or self.sizes[self.seq] != self.seen)

    def behind_hole(self) -> str | None:
        """The first segment whose predecessor is missing, None if there is none."""
        later = min((seq for seq in self.paths if seq > self.seq), default=None)
        return self.paths[later] if later is not None and later - 1 not in self.paths else None


class RunReader:
    """Follows the segments of all workers and the journal of a run. For one thread; holds no open file.

    Each frame comes once, in order within a worker. A segment whose successor exists is final: what is unreadable in it
    is a :class:`Problem`, and reading continues with the successor. The end of the newest segment may be torn by a
    write under way or a writer that was killed: it is tried again at each poll, see :meth:`unfinished`. Where a run was
    compacted, the newest generation replaces the segments that it covers.

    Args:
        store: The store of the run.
        leave: Kinds of frames whose payloads are checked but not returned, see :attr:`Frame.left`. On object stores all
            are returned, because a later read would fetch them twice.
        attempt: Read the segments of this attempt only; of all if None.
        workers: Read the segments of these workers only; of all if None.
        clock: For tests.
    """

    def __init__(
        self,
        store: Store,
        *,
        leave: Collection[int] = (),
        attempt: int | None = None,
        workers: Collection[str] | None = None,
        clock: Clock = time,
    ) -> None:
        self._store = store
        self._leave = leave if store.policy.reads_in_place else ()
        self._attempt = attempt
        self._workers = workers
        self._discovery = SegmentDiscovery(store, attempt, clock)
        self._sequences: dict[tuple[int, str], _Sequence] = {}
        self._folders: dict[str, _Sequence] = {}
        self._journal_frames: list[Frame] = []
        self._problems: dict[tuple[str, int], Problem] = {}
        self._generation: int | None = None
        self._most_at_once = _MOST_AT_ONCE
        #: Prefetched bytes by path and offset; kept until the next poll if the store refused others.
        self._fetched: dict[tuple[str, int], bytes | None] = {}
        self._refused: StoreError | None = None
        self._mapped: tuple[str, memoryview] = ("", memoryview(b""))

    @property
    def problems(self) -> list[Problem]:
        """Problems so far, sorted by path; the rest of such a segment is skipped."""
        return sorted(self._problems.values(), key=lambda problem: (problem.path, problem.offset))

    @property
    def waiting(self) -> set[tuple[int, str]]:
        """(attempt, worker) with bytes that no poll has returned yet, also those behind a missing segment."""
        return {key for key, sequence in self._sequences.items() if sequence.is_ready() or sequence.behind_hole()}

    def unfinished(self) -> list[Problem]:
        """Torn ends of newest segments and holes before them: still being written, or all that a killed writer left."""
        sequences = [*self._sequences.values(), *self._folders.values()]
        torn = [
            Problem(sequence.paths[sequence.seq], sequence.offset, "ends within a frame")
            for sequence in sequences
            if sequence.tail == "incomplete" and sequence.seq in sequence.paths
        ]
        holes = [
            Problem(path, 0, "cannot be read yet: the segment before it is missing")
            for sequence in sequences
            if (path := sequence.behind_hole()) is not None
        ]
        return torn + holes

    def poll(self, max_bytes: int = 64 << 20, *, full: bool = False) -> list[tuple[int, str, Frame]]:
        """The frames since the last call as (attempt, worker, frame), by attempt, then worker, in order within each.

        Never blocks, and never raises for the content of files. HEADER frames and unknown kinds are among them. If
        workers have more than ``max_bytes``, those that were read least come first, each with its share.

        Args:
            max_bytes: Approximate number of bytes after which it stops; the next call continues. At least one frame is
                read.
            full: List everything. Otherwise old buckets are listed only twice a minute. Required before concluding that
                nothing more will come.

        Raises:
            CompactedError: The run was compacted since, and segments that were not read yet were removed.
        """
        self._discover(full)
        found: list[tuple[int, str, Frame]] = []
        try:
            self._read_new(found, max_bytes)
            self._fetched = {}
        except StoreError:
            # Frames read before the refusal count as read and are returned; the next poll requests the rest again.
            self._fetched = {key: data for key, data in self._fetched.items() if data is not None}
            if not found:
                raise
        finally:
            self._refused, self._mapped = None, ("", memoryview(b""))
        return found

    def _read_new(self, found: list[tuple[int, str, Frame]], left: int) -> None:
        """Appends new frames to ``found``, until this number of bytes was read."""
        news: dict[int, list[tuple[str, _Sequence]]] = {}
        for (attempt, worker), sequence in self._sequences.items():
            if sequence.is_ready():
                news.setdefault(attempt, []).append((worker, sequence))
        for attempt, ready in sorted(news.items()):
            before, share = len(found), max(_SHARE, left // len(ready))
            chosen = sorted(ready, key=lambda item: item[1].taken)[: max(1, left // share)]
            self._fetch([sequence for _, sequence in chosen], share)
            for worker, sequence in sorted(chosen, key=lambda item: layout.worker_order(item[0])):
                for frame in self._read(sequence, min(share, left) if len(chosen) == 1 else share):
                    size = HEADER_BYTES + (frame.left or len(frame.payload))
                    left -= size
                    sequence.taken += size
                    found.append((attempt, worker, frame))
            if left <= 0 or (len(found) > before and any(sequence.is_ready() for _, sequence in ready)):
                break  # unread frames of an attempt come before the next attempt

    def journal(self) -> list[Frame]:
        """All FINDING, STATUS and OBSERVATION frames of the journal so far, in order."""
        kinds = (FrameKind.FINDING, FrameKind.STATUS, FrameKind.OBSERVATION)
        for frame in self._follow(layout.JOURNAL):
            if frame.kind in kinds:
                self._journal_frames.append(frame)
        return list(self._journal_frames)

    def streams(self) -> Iterator[tuple[str, Frame]]:
        """The frames of the streams since the last call as (stream, frame), by stream, in order within each.

        HEADER frames and kinds that this release does not know are among them. As :meth:`poll`, it never blocks.
        Returned frames count as read, even if the store then refuses.
        """
        for name in filter(layout.is_stream, self._store.folders(layout.STREAMS)):
            for frame in self._follow(layout.stream(name)):
                yield name, frame

    def _follow(self, folder: str) -> Iterator[Frame]:
        """New frames of a folder that holds nothing but one sequence of segments and claims."""
        sequence = self._folders.setdefault(folder, _Sequence())
        after = layout.numbered(folder, sequence.seq - 1) if sequence.seq else ""
        for entry in self._store.list(folder, after):
            seq = layout.parse_numbered(folder, entry.path)
            if seq is not None:
                sequence.found(seq, entry)
        yield from self._read(sequence, None)

    def _discover(self, full: bool) -> None:
        """List new segments into the sequences."""
        if self._generation is None:
            self._begin()
        for name, entry in self._discovery.find(full=full):
            if self._workers is not None and name.worker not in self._workers:
                continue
            self._sequences.setdefault((name.attempt, name.worker), _Sequence()).found(name.seq, entry)
        if full:
            self._check_generation(unread_only=True)

    def _begin(self) -> None:
        """Start with the newest generation, if the run was compacted."""
        generation = self._newest()
        # Set last: if the store refuses, the next poll has to read it again.
        self._generation = generation.number if generation is not None else 0
        for covered in generation.covers if generation is not None else ():
            if covered.segments and self._wants(covered):
                sequence = self._sequences[covered.attempt, covered.worker] = _Sequence(seq=covered.segments - 1)
                sequence.found(sequence.seq, StoredObject(covered.frames, covered.bytes))

    def _check_generation(self, *, unread_only: bool = False) -> None:
        """A missing segment may be in a generation that was written since."""
        newest = self._newest()
        if newest is None or newest.number <= (self._generation or 0):
            return
        if not unread_only or any(self._is_unread(covered) for covered in newest.covers):
            raise CompactedError(f"{self._store.location} was compacted while it was read; open it again")

    def _newest(self) -> Generation | None:
        """The newest generation, None if there is none or it is damaged."""
        try:
            return newest_generation(self._store)
        except DamagedDataError as error:
            self._problems[layout.COMPACTED, 0] = Problem(layout.COMPACTED, 0, str(error))
            return None

    def _is_unread(self, covered: Covered) -> bool:
        """Whether segments that a newer generation replaces were removed before they were read to their end."""
        if not covered.segments or not self._wants(covered):
            return False
        sequence = self._sequences.get((covered.attempt, covered.worker))
        if sequence is None or sequence.behind_hole():
            return True
        path = sequence.paths.get(sequence.seq)
        return sequence.seq < covered.segments and (path is None or self._store.size(path) is None)

    def _wants(self, covered: Covered) -> bool:
        """Whether this reader reads the attempt and the worker."""
        return self._attempt in (None, covered.attempt) and (self._workers is None or covered.worker in self._workers)

    def _is_fixed(self, path: str) -> bool:
        """Whether an object never grows."""
        return not self._store.policy.segments_grow or path.startswith(layout.COMPACTED)

    def _fetch(self, sequences: list[_Sequence], share: int) -> None:
        """On a store that does not read in place: fetch the next bytes of all sequences at once."""
        if self._store.policy.reads_in_place:
            return
        ranges: list[tuple[str, int, int | None]] = []
        for sequence in sequences:
            seq, offset, left = sequence.seq, sequence.offset, share
            while left > 0 and seq in sequence.paths:
                end = min(sequence.sizes[seq], offset + max(_SHARE, left))
                if end > offset and (seq != sequence.seq or sequence.seen != sequence.sizes[seq]):
                    ranges.append((sequence.paths[seq], offset, end))
                left -= end - offset
                seq, offset = seq + 1, 0
        missing = [wanted for wanted in ranges if wanted[:2] not in self._fetched]
        while missing and len(ranges) > 1:
            asked, missing = missing[: self._most_at_once], missing[self._most_at_once :]
            try:
                found = self._store.read_many(asked)
            except StoreError as error:
                self._most_at_once = max(1, len(asked) // 2)  # an unreliable store may answer a smaller request
                self._refused = error
                return
            self._most_at_once = min(_MOST_AT_ONCE, 2 * self._most_at_once)
            self._fetched.update({key[:2]: data for key, data in zip(asked, found, strict=True)})

    def _read(self, sequence: _Sequence, limit: int | None) -> Iterator[Frame]:
        """New frames of a sequence, until ``limit`` bytes were read or there are no more."""
        left = limit
        while sequence.seq in sequence.paths and (left is None or left > 0):
            # The writer finishes a segment before it begins the next: once the next was listed, a read from now on
            # sees all of this one. The size listed together with the next may be older, so it does not count then.
            path, final = sequence.paths[sequence.seq], sequence.seq + 1 in sequence.paths
            all_seen = sequence.sizes[sequence.seq] == sequence.seen
            if all_seen and not final:
                return
            if not (all_seen and self._is_fixed(path)):
                for frame in self._read_segment(sequence, left, final):
                    if left is not None:
                        left -= HEADER_BYTES + (frame.left or len(frame.payload))
                    yield frame
            if left is not None and left <= 0 and sequence.tail == "more":
                return
            if not final and (sequence.tail is not None or not self._is_fixed(path)):
                return
            self._finish(sequence)

    def _read_segment(self, sequence: _Sequence, limit: int | None, final: bool) -> Iterator[Frame]:
        """New frames of the current segment; sets ``sequence.tail`` to why it stopped."""
        path, left = sequence.paths[sequence.seq], limit
        listed = sequence.sizes[sequence.seq]
        least = 0
        while True:
            if left is not None and left <= 0:
                sequence.tail = "more"
                return
            want = max(least, _CHUNK if left is None else min(_CHUNK, max(left, _SHARE)))
            try:
                data, ended = self._load(path, sequence.offset, want, listed, final)
            except MissingFileError:
                self._check_generation()
                sequence.tail = "missing"
                return
            result = scan(data, base=sequence.offset, source=path, leave=self._leave)
            sequence.offset += result.consumed
            if left is not None:
                left -= result.consumed
            yield from result.frames
            if result.consumed:
                self._problems.pop((path, sequence.offset - result.consumed), None)  # the writer had not finished it
            if result.problem == "damaged":
                sequence.tail, sequence.seen = "damaged", listed
                self._problems[path, sequence.offset] = Problem(
                    path, sequence.offset, "damaged frame; the rest is skipped"
                )
                return
            if ended:
                sequence.tail = result.problem
                sequence.seen = max(listed, sequence.offset + len(data) - result.consumed)
                return
            # The chunk ended within a frame. Read on; if that frame is longer than a chunk, read just that frame.
            length = frame_length(bytes(data[result.consumed : result.consumed + HEADER_BYTES]))
            least = min(length or 0, HEADER_BYTES + MAX_PAYLOAD)

    def _load(self, path: str, offset: int, want: int, listed: int, final: bool) -> tuple[bytes | memoryview, bool]:
        """Some bytes of an object, and whether they are the last of it."""
        if not self._store.policy.reads_in_place:
            end = min(listed, offset + want)
            if self._refused is not None and (path, offset) not in self._fetched:
                raise self._refused  # no second request to a store that has just refused
            data = self._fetched.pop((path, offset), b"")
            if data is None:
                raise MissingFileError(f"{path} does not exist; check the path of the run")
            if len(data) < min(end - offset, want):
                data += self._store.read(path, offset + len(data), end) if end > offset + len(data) else b""
            return data, offset + len(data) >= listed or len(data) < end - offset
        if (final or self._is_fixed(path)) and listed >= _MAPPED:
            # It never gets shorter: the writer truncates a failed append only in its newest segment.
            if self._mapped[0] != path:
                self._mapped = (path, memoryview(self._store.map(path)))
            whole = self._mapped[1]
            return whole[offset : offset + want], offset + want >= len(whole)
        data = self._store.read(path, offset, offset + want)
        return data, len(data) < want

    def _finish(self, sequence: _Sequence) -> None:
        """Leave a final segment for its successor."""
        path = sequence.paths.pop(sequence.seq)
        sequence.sizes.pop(sequence.seq, None)
        if sequence.tail in ("incomplete", "missing"):
            what = "ends within a frame" if sequence.tail == "incomplete" else "was removed before it was read"
            self._problems[path, sequence.offset] = Problem(path, sequence.offset, what)
        sequence.seq, sequence.offset, sequence.tail, sequence.seen = sequence.seq + 1, 0, None, -1


def describe(frame: Frame, error: DamagedDataError) -> Problem:
    """The problem of a whole frame with an invalid payload."""
    return Problem(frame.source or "a frame", frame.offset, str(error))
