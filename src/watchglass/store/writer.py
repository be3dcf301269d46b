"""Writers of segments: one per worker for what it recorded, one for the evaluator's journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from watchglass.errors import NoRoomError, RunExistsError, StoreError
from watchglass.records import FORMAT_VERSION, Finding, Observation, RuleStatus
from watchglass.store import claim, layout
from watchglass.store.compaction.generations import newest_generation
from watchglass.store.contract import Store
from watchglass.store.encoding import codec
from watchglass.store.manifest import stay_with_run

if TYPE_CHECKING:
    from typing_extensions import Self


class Clock(Protocol):
    """What writers need of a clock; the module :mod:`time` is one."""

    def time_ns(self) -> int:
        """Wall time, nanoseconds since 1970."""

    def monotonic_ns(self) -> int:
        """A time that never jumps, nanoseconds since an arbitrary moment."""


class SegmentWriter:
    """Writes frames of one worker into its segments. One thread at a time; the worker must be claimed.

    Where the store appends, a segment grows with every flush and is rotated by size and age; elsewhere each flush is
    a segment of its own. Every segment begins with a header frame.

    Args:
        store: The store of a run.
        attempt: The attempt.
        worker: Whose segments.
        clock: Tells the time; age is told by its monotonic time, so a clock that is set changes nothing but buckets.
        rotate_bytes: Begin the next segment at so many bytes.
        rotate_s: Begin the next segment after so many seconds.
        first: Nobody has written segments of this worker before: none are looked for.
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
        self._store = store
        self._attempt = attempt
        self._worker = layout.check_worker(worker)
        self._clock = clock
        self._rotate_bytes = rotate_bytes
        self._rotate_ns = int(rotate_s * 1e9)
        self._path: str | None = None
        self._size = 0
        self._opened_ns = 0
        self._bucket = 0
        self._seq: int | None = 0 if first else None
        self._closed = False
        #: Bytes written so far, headers included.
        self.bytes_written = 0
        stay_with_run(store)

    def write(self, frames: Sequence[bytes]) -> None:
        """Write encoded frames in one append or put; nothing happens without frames.

        Raises:
            StoreError: The store refused. The writer stays usable: the same frames may be written again later and
                then go to a new segment, so that a part left behind hides nothing. A reader that was quick may see
                frames of that part twice.
        """
        if self._closed:
            raise StoreError(f"the writer of {self._worker} is closed; make a new one")
        data = b"".join(frames)
        if not data:
            return
        if self._path is None or not self._store.appends or self._is_due():
            self._open(data)
            return
        try:
            self._store.append(self._path, data)
        except Exception:
            self._path = None  # what of the data arrived is unknown: never append behind it
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
        # Never back in time, although clocks are set back: readers list from the newest buckets on.
        bucket = max(self._bucket, wall_ns // (layout.BUCKET_SECONDS * 1_000_000_000))
        path = layout.segment(self._attempt, bucket, self._worker, self._seq)
        content = self._header(wall_ns, opened_ns) + data
        try:
            self._store.write(path, content)
        except RunExistsError as error:
            raise RunExistsError(
                f"{self._worker} of {self._store.location} is written by another process; give each a rank of its own"
            ) from error
        except NoRoomError:
            raise
        except Exception:
            self._seq = None  # what is there now is unknown: count on behind it
            raise
        self._path, self._size, self._opened_ns = path, len(content), opened_ns
        self._bucket = bucket
        self._seq += 1
        self.bytes_written += len(content)

    def _resume(self) -> tuple[int, int]:
        """(next sequence number, its earliest bucket), behind what an earlier process of this worker wrote."""
        names = (layout.parse_segment(entry.path) for entry in self._store.list(layout.segments(self._attempt)))
        own = [name for name in names if name and name.worker == self._worker]
        # Looked at after the listing: segments that were compacted are gone, and their numbers are taken for ever.
        compacted = newest_generation(self._store)
        covered = compacted.covered(self._attempt, self._worker) if compacted is not None else None
        first = covered.segments if covered is not None else 0
        return max([first, *(name.seq + 1 for name in own)]), max((name.bucket for name in own), default=0)

    def _header(self, wall_ns: int, monotonic_ns: int) -> bytes:
        process = claim.this_process()
        header = {
            "format": list(FORMAT_VERSION), "attempt": self._attempt, "worker": self._worker, "seq": self._seq,
            "wall_ns": wall_ns, "monotonic_ns": monotonic_ns,
            "host": process.host, "boot_id": process.boot_id, "pid": process.pid,
        }  # fmt: skip
        return codec.encode_header(header)


class JournalWriter:
    """The one writer of a run's journal. Thread-safe; holds the journal's lease from construction to :meth:`close`.

    Args:
        store: The store of a run.
        gone: A holder of the lease that is known to be no more, see :func:`watchglass.store.claim.take_lease`.

    Raises:
        RunExistsError: On construction, when another living process writes the journal.
    """

    def __init__(self, store: Store, gone: claim.Claim | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._closed = False
        stay_with_run(store)
        claim.take_lease(store, gone)
        try:
            self._seq: int | None = self._resume()
        except Exception:
            claim.release_lease(store)
            raise
        self._path: str | None = None

    def write(self, records: Sequence[Finding | RuleStatus | Observation | bytes]) -> None:
        """Append records, or their encoded frames, in one go and in order.

        A finding replaces the earlier one with its id, a status the earlier one of its rule. An observation must be
        written before a rule sees what it says.

        Raises:
            StoreError: The store refused; the same records may be written again later.
        """
        self._write([record if isinstance(record, bytes) else _encode(record) for record in records])

    def close(self) -> None:
        """Give the journal back. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                with suppress(StoreError):  # a full disk: the lease ends with the process anyway
                    claim.release_lease(self._store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, frames: list[bytes]) -> None:
        if not frames:
            return
        data = b"".join(frames)
        with self._lock:
            if self._closed:
                raise StoreError("the journal is closed; open it again to write")
            if self._path is not None and self._store.appends:
                try:
                    self._store.append(self._path, data)
                except Exception:
                    self._path = None  # as in SegmentWriter: never append behind a torn write
                    raise
                return
            seq = self._resume() if self._seq is None else self._seq
            path = layout.journal(seq)
            header = {"format": list(FORMAT_VERSION), "seq": seq, "wall_ns": time.time_ns()}
            self._seq = None  # should this fail, what is there is unknown: count on behind it
            self._store.write(path, codec.encode_header(header) + data)
            self._path, self._seq = path, seq + 1

    def _resume(self) -> int:
        """The sequence number behind what is there."""
        known = [layout.parse_journal(entry.path) for entry in self._store.list(layout.JOURNAL)]
        return max((seq for seq in known if seq is not None), default=-1) + 1


def _encode(record: Finding | RuleStatus | Observation) -> bytes:
    if isinstance(record, Finding):
        return codec.encode_finding(record)
    if isinstance(record, RuleStatus):
        return codec.encode_status(record)
    return codec.encode_observation(record)
