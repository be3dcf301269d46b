"""Writers of segments: one per worker for what it recorded, one for the evaluator's journal."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from watchglass.config import Clock
from watchglass.errors import InvalidValueError, NoRoomError, RunExistsError, StoreError
from watchglass.records import FORMAT_VERSION, Finding, Observation, RowKind, RuleStatus
from watchglass.store import claim, layout
from watchglass.store.contract import Store
from watchglass.store.encoding import codec
from watchglass.store.encoding.rows import encode_rows, table_of
from watchglass.store.generations import newest_generation
from watchglass.store.manifest import stay_with_run

_log = logging.getLogger("watchglass")


class _Segments(ABC):
    """Writes frames into a sequence of segments. One thread at a time.

    Where segments grow, a segment grows with every flush and is rotated by size and age; elsewhere each flush is a
    separate segment. Every segment begins with a header frame.
    """

    def __init__(
        self, store: Store, name: str, header: Mapping[str, Any], clock: Clock, rotate_bytes: int, rotate_s: float
    ) -> None:
        """Nothing is written yet.

        Args:
            store: The store of a run.
            name: The owner of the segments, for messages.
            header: What their headers state about the owner.
            clock: The time. Age is measured by monotonic time, so setting the clock changes nothing but buckets.
            rotate_bytes: Size at which the next segment begins.
            rotate_s: Age in seconds at which the next segment begins.
        """
        self._store, self._name, self._owner, self._clock = store, name, header, clock
        self._rotate_bytes, self._rotate_ns = rotate_bytes, rotate_s * 1e9
        self._path: str | None = None
        self._size = self._opened_ns = self._bucket = 0
        self._seq: int | None = None
        self._closed = False
        #: Bytes written so far, headers included.
        self.bytes_written = 0
        stay_with_run(store)

    @abstractmethod
    def _path_of(self, bucket: int, seq: int) -> str:
        """The path of a segment."""

    @abstractmethod
    def _resume(self) -> tuple[int, int]:
        """(next sequence number, its earliest bucket), behind the segments of an earlier process."""

    def write(self, frames: Sequence[bytes]) -> None:
        """Write encoded frames in one append or put; nothing happens without frames.

        Raises:
            StoreError: The store refused. The writer stays usable: the same frames may be written again later and
                then go to a new segment, so that a part left behind hides nothing. A reader that was quick may see
                frames of that part twice.
        """
        if self._closed:
            raise StoreError(f"the writer of {self._name} is closed; make a new one")
        data = b"".join(frames)
        if not data:
            return
        if self._path is None or not self._store.policy.segments_grow or self._is_due():
            self._open(data)
            return
        try:
            self._store.append(self._path, data)
        except Exception:
            self._path = None  # how much of the data arrived is unknown: never append behind it
            raise
        self._size += len(data)
        self.bytes_written += len(data)

    def close(self) -> None:
        """End writing; there is nothing to flush."""
        self._closed = True
        self._path = None

    def _is_due(self) -> bool:
        age = self._clock.monotonic_ns() - self._opened_ns
        return self._size >= self._rotate_bytes or age >= self._rotate_ns

    def _open(self, data: bytes) -> None:
        """Begin the next segment with a header and ``data``; it appears whole or not at all."""
        if self._seq is None:
            self._seq, self._bucket = self._resume()
        wall_ns, opened_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        # Never back in time, even if the clock is set back: readers list from the newest buckets on.
        bucket = max(self._bucket, wall_ns // (layout.BUCKET_SECONDS * 1_000_000_000))
        path = self._path_of(bucket, self._seq)
        content = self._header(wall_ns, opened_ns) + data
        try:
            self._store.write(path, content)
        except RunExistsError as error:
            raise RunExistsError(
                f"{self._name} of {self._store.location} is also written by another process; give each process its "
                "own rank"
            ) from error
        except NoRoomError:
            raise
        except Exception:
            self._seq = None  # whether it arrived is unknown: continue behind it
            raise
        self._path, self._size, self._opened_ns = path, len(content), opened_ns
        self._bucket = bucket
        self._seq += 1
        self.bytes_written += len(content)

    def _header(self, wall_ns: int, monotonic_ns: int) -> bytes:
        process = claim.this_process()
        header = {
            "format": list(FORMAT_VERSION), **self._owner, "seq": self._seq,
            "wall_ns": wall_ns, "monotonic_ns": monotonic_ns,
            "host": process.host, "boot_id": process.boot_id, "pid": process.pid,
        }  # fmt: skip
        return codec.encode_header(header)


class SegmentWriter(_Segments):
    """Writes frames of one worker into its segments; the worker must be claimed.

    Args:
        store: The store of a run.
        attempt: The attempt.
        worker: The worker.
        clock: The time.
        rotate_bytes: See :class:`_Segments`.
        rotate_s: See :class:`_Segments`.
        first: No process has written segments of this worker before: none are searched for.
    """

    def __init__(
        self,
        store: Store,
        attempt: int,
        worker: str,
        *,
        clock: Clock = time,
        rotate_bytes: int = 8 << 20,
        rotate_s: float = 60.0,
        first: bool = False,
    ) -> None:
        self._attempt, self._worker = attempt, layout.check_worker(worker)
        super().__init__(store, worker, {"attempt": attempt, "worker": worker}, clock, rotate_bytes, rotate_s)
        self._seq = 0 if first else None

    def _path_of(self, bucket: int, seq: int) -> str:
        return layout.segment(self._attempt, bucket, self._worker, seq)

    def _resume(self) -> tuple[int, int]:
        names = (layout.parse_segment(entry.path) for entry in self._store.list(layout.segments(self._attempt)))
        own = [name for name in names if name and name.worker == self._worker]
        # Looked up after the listing: compacted segments are gone, and their numbers stay taken.
        compacted = newest_generation(self._store)
        covered = compacted.covered(self._attempt, self._worker) if compacted is not None else None
        first = covered.segments if covered is not None else 0
        return max([first, *(name.seq + 1 for name in own)]), max((name.bucket for name in own), default=0)


class _FolderSegments(_Segments):
    """Writes the segments of a stream or of the journal, which lie in one folder for all attempts."""

    def __init__(
        self,
        store: Store,
        folder: str,
        name: str,
        header: Mapping[str, Any],
        clock: Clock = time,
        rotate_s: float = 60.0,
    ) -> None:
        self._folder = folder
        super().__init__(store, name, header, clock, 8 << 20, rotate_s)

    def _path_of(self, bucket: int, seq: int) -> str:
        return layout.numbered(self._folder, seq)

    def _resume(self) -> tuple[int, int]:
        known = [layout.parse_numbered(self._folder, entry.path) for entry in self._store.list(self._folder)]
        return max((seq for seq in known if seq is not None), default=-1) + 1, 0

    def _open(self, data: bytes) -> None:
        try:
            super()._open(data)
        except RunExistsError:
            self._seq = None  # the store may have lost the answer to a write of this process: continue behind it
            raise


class StreamWriter(AbstractContextManager["StreamWriter"]):
    """Writes rows keyed by time into a stream of a run. One thread at a time; holds the stream until :meth:`close`.

    A stream is an append-only source of rows that is no worker. No step waits for it; it may begin before all steps.

    Batches that the store refuses are buffered in memory and written with the next batch or on close.
    Batches that do not fit are lost, the oldest first. The stream records the loss as soon as it is written again.

    Args:
        store: The store of a run.
        attempt: The attempt that the rows are about.
        stream: Name of the stream, as ``system``. Each machine of a run has separate streams.
        clock: Source of the time; rows have its monotonic time.
        most_waiting_bytes: Most bytes that are buffered while the store refuses them; the newest batch always is.

    Raises:
        RunExistsError: On construction, when another living process writes the stream.
    """

    def __init__(
        self, store: Store, attempt: int, stream: str, *, clock: Clock = time, most_waiting_bytes: int = 8 << 20
    ) -> None:
        self._store, self._clock, self._claim = store, clock, layout.stream_claim(stream)
        self._most_waiting_bytes = most_waiting_bytes
        claim.take(store, self._claim, claim.this_process(), f"stream {stream} of {store.location}")
        header = {"attempt": attempt, "stream": stream}
        self._segments = _FolderSegments(store, layout.stream(stream), stream, header, clock)
        self._watermark_ns = 0
        self._stream, self._waiting, self._recorded, self._closed = stream, list[bytes](), 0, False
        #: Batches that were discarded because the store refused for too long.
        self.lost = 0

    def write(self, rows: Mapping[RowKind, Sequence[Sequence[Any]]], until_ns: int | None = None) -> None:
        """Write a batch of rows and a watermark: no earlier rows will come.

        Args:
            rows: Of kinds that are keyed by time: their fields in order, the time first.
            until_ns: All earlier rows are written with this batch, by the monotonic clock; now if None.

        Raises:
            InvalidValueError: Rows are earlier than the end of the previous batch, or not before ``until_ns``, or more
                than a frame holds.
            StoreError: The store refused. The batch is buffered, see above.
        """
        tables = {kind: table_of(kind, found) for kind, found in rows.items() if found}
        times = [int(time_ns) for table in tables.values() for time_ns in table["time_ns"]]
        first_ns, last_ns = min(times, default=self._watermark_ns), max(times, default=self._watermark_ns)
        if until_ns is None:
            until_ns = max(self._clock.monotonic_ns(), last_ns + 1)
        if not self._watermark_ns <= first_ns <= last_ns < until_ns:
            raise InvalidValueError(
                f"rows of a batch must have times from {self._watermark_ns}, where the one before ended, to before "
                f"until_ns={until_ns} but got {first_ns} to {last_ns}; omit late rows"
            )
        frames = [*(encode_rows(kind, table) for kind, table in tables.items()), codec.encode_watermark(until_ns)]
        self._watermark_ns = until_ns
        self._waiting.append(b"".join(frames))
        while len(self._waiting) > 1 and sum(map(len, self._waiting)) > self._most_waiting_bytes:
            self._lose(1)
        self._flush()

    def close(self) -> None:
        """Write the buffered batches, if the store takes them, and release the stream. A second call does nothing."""
        if not self._closed:
            self._closed = True
            try:
                self._flush()
            except (StoreError, RunExistsError):
                self._lose(len(self._waiting))
            self._segments.close()
            with suppress(StoreError):  # the claim ends with its process anyway
                claim.release(self._store, self._claim)

    def _flush(self) -> None:
        if self._waiting:
            lost = {"event": "lost", "batches": self.lost - self._recorded}
            gap = [codec.encode_lifecycle(lost)] if self.lost > self._recorded else []
            self._segments.write([*gap, *self._waiting])
            self._waiting, self._recorded = [], self.lost

    def _lose(self, count: int) -> None:
        if not self.lost:
            _log.warning(
                "watchglass: stream %s loses rows: %s has refused them for too long", self._stream, self._store.location
            )
        del self._waiting[:count]
        self.lost += count

    def __exit__(self, *exc: object) -> None:
        self.close()


class JournalWriter(AbstractContextManager["JournalWriter"]):
    """The one writer of a run's journal. Thread-safe; holds the journal's lease from construction to :meth:`close`.

    Args:
        store: The store of a run.
        gone: A holder of the lease that is known to be dead, see :func:`watchglass.store.claim.take`.

    Raises:
        RunExistsError: On construction, when another living process writes the journal.
    """

    def __init__(self, store: Store, gone: claim.Claim | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._closed = False
        self._segments = _FolderSegments(store, layout.JOURNAL, "the journal", {}, rotate_s=math.inf)
        claim.take(store, layout.LEASE, claim.this_process(), f"the journal of {store.location}", gone)

    def write(self, records: Sequence[Finding | RuleStatus | Observation | bytes]) -> None:
        """Append records, or their encoded frames, in one go and in order.

        A finding replaces the earlier one with its id, a status the earlier one of its rule. An observation must be
        written before a rule sees its content.

        Raises:
            StoreError: The store refused; the same records may be written again later.
        """
        with self._lock:
            self._segments.write(
                [record if isinstance(record, bytes) else codec.encode_record(record) for record in records]
            )

    def close(self) -> None:
        """Release the journal. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._segments.close()
                with suppress(StoreError):  # a full disk: the lease ends with the process anyway
                    claim.release(self._store, layout.LEASE)

    def __exit__(self, *exc: object) -> None:
        self.close()
