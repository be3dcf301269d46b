"""Reading a run while it is written, or after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.store import layout, manifest
from watchglass.store.contract import Entry, Store
from watchglass.store.frames import HEADER_BYTES, MAX_PAYLOAD, Frame, FrameKind, frame_length, scan

#: Bytes read at a time. A frame that is longer is read by itself.
_CHUNK = 4 << 20
#: Buckets before the newest that every poll lists again, for workers whose clocks are behind.
_SKEW_BUCKETS = 2
#: Every so many polls everything is listed, for clocks that are further behind and for late data of old attempts.
_FULL_EVERY = 50


@dataclass(frozen=True)
class Problem:
    """Something in a run that cannot be read.

    Attributes:
        path: The object.
        offset: Where in it, in bytes.
        what: Half a sentence.
    """

    path: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}: {self.what}"


@dataclass
class _Stream:
    """The segments of one worker of one attempt (or of the journal), read in order."""

    paths: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    seq: int = 0
    offset: int = 0
    tail: str | None = None
    """Why reading of the current segment stopped before its end, None when all of it was read."""
    seen: int = -1
    """Size of the current segment when it was last read."""

    def found(self, seq: int, entry: Entry) -> None:
        """Note a listed segment. Of two with one number the later bucket counts: the first was a write that failed."""
        known = self.paths.get(seq, "")
        if entry.path < known:
            return
        if known and entry.path != known and seq == self.seq:
            self.offset, self.tail, self.seen = 0, None, -1
        self.paths[seq], self.sizes[seq] = entry.path, entry.size


class RunReader:
    """Follows the segments of all workers and the journal of a run. For one thread; holds no open file.

    Each frame comes once, in order within a worker. A segment whose successor exists is final: what is unreadable in
    it is a :class:`Problem`, and reading goes on with the successor. The end of the newest segment may be torn by a
    write under way or a writer that was killed: it is tried again at each poll, see :meth:`unfinished`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._journal = _Stream()
        self._journal_frames: list[Frame] = []
        self._problems: dict[tuple[str, int], Problem] = {}
        self._attempts = 0
        self._newest_bucket = 0
        self._polls = 0

    @property
    def problems(self) -> list[Problem]:
        """What could not be read so far, by path; the rest of such a segment is skipped."""
        return sorted(self._problems.values(), key=lambda problem: (problem.path, problem.offset))

    def unfinished(self) -> list[Problem]:
        """Torn ends of newest segments and holes before them: still being written, or all that a killed writer left."""
        streams = [*self._streams.values(), self._journal]
        torn = [
            Problem(stream.paths[stream.seq], stream.offset, "ends within a frame")
            for stream in streams
            if stream.tail == "incomplete" and stream.seq in stream.paths
        ]
        holes = [
            Problem(stream.paths[later[0]], 0, "cannot be read yet: the segment before it is missing")
            for stream in streams
            if (later := sorted(seq for seq in stream.paths if seq > stream.seq)) and later[0] - 1 not in stream.paths
        ]
        return torn + holes

    def poll(self, max_bytes: int = 64 << 20, *, full: bool = False) -> list[tuple[int, str, Frame]]:
        """The frames since the last call as (attempt, worker, frame), by attempt, then worker, in order within each.

        Never blocks, and never raises for what is inside files. HEADER frames and kinds that this release does not
        know are among them.

        Args:
            max_bytes: Stop after about so many bytes; the next call goes on. One frame is always read.
            full: List everything. Else old buckets are looked at every 50th call only; pass it before concluding that
                nothing more will come.
        """
        self._discover(full or self._polls % _FULL_EVERY == 0)
        self._polls += 1
        found: list[tuple[int, str, Frame]] = []
        left = max_bytes
        for attempt, worker in sorted(self._streams, key=lambda key: (key[0], layout.worker_order(key[1]))):
            if left <= 0:
                break
            for frame in self._read(self._streams[attempt, worker], left):
                left -= HEADER_BYTES + len(frame.payload)
                found.append((attempt, worker, frame))
        return found

    def journal(self) -> list[Frame]:
        """All FINDING, STATUS and OBSERVATION frames of the journal so far, in order."""
        for entry in self._store.list(layout.JOURNAL):
            seq = layout.parse_journal(entry.path)
            if seq is not None:
                self._journal.paths[seq] = entry.path
                self._journal.sizes[seq] = entry.size
        for frame in self._read(self._journal, None):
            if frame.kind in (FrameKind.FINDING, FrameKind.STATUS, FrameKind.OBSERVATION):
                self._journal_frames.append(frame)
        return list(self._journal_frames)

    def _discover(self, full: bool) -> None:
        """List new segments into the streams."""
        while manifest.has_attempt(self._store, self._attempts):
            self._attempts += 1
            full = True
        for attempt in range(self._attempts):
            if not full and attempt < self._attempts - 1:
                continue
            after = "" if full else layout.segments(attempt, self._newest_bucket - _SKEW_BUCKETS)
            for entry in self._store.list(layout.segments(attempt), after):
                name = layout.parse_segment(entry.path)
                if name is None:
                    continue
                stream = self._streams.setdefault((attempt, name.worker), _Stream())
                stream.found(name.seq, entry)
                self._newest_bucket = max(self._newest_bucket, name.bucket)

    def _read(self, stream: _Stream, limit: int | None) -> Iterator[Frame]:
        """New frames of a stream, until ``limit`` bytes were read or there are no more."""
        left = limit
        while stream.seq in stream.paths and (left is None or left > 0):
            # The writer finishes a segment before it begins the next: once the next was listed, a read from now on
            # sees all of this one. The size listed together with the next may be older, so it does not count then.
            final = stream.seq + 1 in stream.paths
            if not final and stream.sizes[stream.seq] == stream.seen:
                return
            for frame in self._read_segment(stream, left, final):
                if left is not None:
                    left -= HEADER_BYTES + len(frame.payload)
                yield frame
            if not final:
                return
            if left is not None and left <= 0 and stream.tail == "more":
                return
            self._finish(stream)

    def _read_segment(self, stream: _Stream, limit: int | None, final: bool) -> Iterator[Frame]:
        """New frames of the current segment; sets ``stream.tail`` to why it stopped."""
        path, left = stream.paths[stream.seq], limit
        listed = stream.sizes[stream.seq]
        want = _CHUNK
        while True:
            if left is not None and left <= 0:
                stream.tail = "more"
                return
            try:
                data = self._store.read(path, stream.offset, stream.offset + want)
            except MissingFileError:
                stream.tail = "missing"
                return
            result = scan(data, base=stream.offset, source=path)
            stream.offset += result.consumed
            if left is not None:
                left -= result.consumed
            yield from result.frames
            if result.consumed:
                self._problems.pop((path, stream.offset - result.consumed), None)  # it was only not there yet
            if result.problem == "damaged":
                stream.tail, stream.seen = "damaged", listed
                self._problems[path, stream.offset] = Problem(path, stream.offset, "damaged frame; the rest is skipped")
                return
            if len(data) < want:
                stream.tail = result.problem
                stream.seen = max(listed, stream.offset + len(data) - result.consumed)
                return
            # The chunk ended within a frame: read on, or where that frame is longer than a chunk read just that.
            length = frame_length(data[result.consumed : result.consumed + HEADER_BYTES])
            want = max(_CHUNK, min(length or 0, HEADER_BYTES + MAX_PAYLOAD))

    def _finish(self, stream: _Stream) -> None:
        """Leave a final segment for its successor."""
        path = stream.paths.pop(stream.seq)
        stream.sizes.pop(stream.seq, None)
        if stream.tail in ("incomplete", "missing"):
            what = "ends within a frame" if stream.tail == "incomplete" else "was removed before it was read"
            self._problems[path, stream.offset] = Problem(path, stream.offset, what)
        stream.seq, stream.offset, stream.tail, stream.seen = stream.seq + 1, 0, None, -1


def describe(frame: Frame, error: DamagedDataError) -> Problem:
    """The problem of a whole frame whose payload makes no sense."""
    return Problem(frame.source or "a frame", frame.offset, str(error))
