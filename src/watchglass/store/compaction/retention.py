"""Removes files of raw tensors by age and size, the oldest first, and notes it for readers."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.records import RAW
from watchglass.store import layout
from watchglass.store.compaction.segment_compactor import UnfitError, whole_frames
from watchglass.store.contract import Store
from watchglass.store.encoding.codec import decode_header
from watchglass.store.encoding.frames import FrameKind
from watchglass.store.encoding.rows import decode_rows
from watchglass.store.generations import Covered, newest_generation
from watchglass.store.json_documents import read_document


def was_removed(store: Store, path: str) -> bool:
    """Whether a file of raw tensors that is not there was removed by retention, and is thus not missing by accident."""
    parsed = layout.parse_tensors(path)
    return parsed is not None and parsed[2] < _removed_below(store, parsed[0], parsed[1])


class RawRetention:
    """Keeps the raw tensors of one worker within a number of bytes while it writes them. Thread-safe.

    Args:
        store: The store of a run.
        attempt: Attempt of the worker.
        worker: Its name.
        keep_bytes: How much of its files is kept; the newest file always is.
    """

    def __init__(self, store: Store, attempt: int, worker: str, keep_bytes: int) -> None:
        self._store, self._attempt, self._worker, self._keep_bytes = store, attempt, worker, keep_bytes
        self._files: deque[tuple[str, int]] | None = None
        self._bytes = 0
        self._lock = threading.Lock()

    def added(self, path: str, size: int | None = None) -> int:
        """Note a file that was written, and remove the oldest beyond the bound; returns how many.

        Args:
            path: The file.
            size: Its length in bytes; None to look it up.

        Raises:
            StoreError: The store refused; the next call retries.
        """
        with self._lock:
            if self._files is None:
                found = _files(self._store, self._attempt).get(self._worker, [])
                self._files = deque(file for file in found if file[0] != path)
                self._bytes = sum(length for _, length in self._files)
            length = self._store.size(path) or 0 if size is None else size
            self._files.append((path, length))
            self._bytes += length
            going: list[str] = []
            left = self._bytes
            for file, each in islice(self._files, len(self._files) - 1):
                if left <= self._keep_bytes:
                    break
                if self._store.policy.buffers_writes and self._store.size(file) is None:
                    break  # still in the spool: it would arrive after its removal
                going.append(file)
                left -= each
            _remove(self._store, self._attempt, self._worker, going)
            for _ in going:
                self._bytes -= self._files.popleft()[1]
            return len(going)


def remove_raw(store: Store, *, keep_bytes: int | None = None, before_ns: int | None = None) -> tuple[int, int]:
    """Remove raw tensors of compacted attempts that are too old or too many; returns how many files and bytes.

    Args:
        store: The store of a run.
        keep_bytes: How much of them is kept, newest first; None for all.
        before_ns: Files written before are removed, nanoseconds since 1970; None for none. When a file was written is
            known to within a segment, a minute.

    Raises:
        StoreError: The store refused; it may be done again.
        DamagedDataError: The newest generation makes no sense.
    """
    generation = newest_generation(store)
    covers = generation.covers if generation is not None else ()
    written = _written_ns(store, covers)
    order: list[tuple[int, int, str, str, int]] = []
    for attempt in sorted({each.attempt for each in covers}):
        for worker, files in _files(store, attempt).items():
            last_ns = 0
            for path, size in files:
                last_ns = max(last_ns, written.get(path, 0))
                order.append((attempt, last_ns, path, worker, size))
    order.sort(key=lambda file: file[:3])
    left = sum(file[4] for file in order)
    going: dict[tuple[int, str], list[str]] = {}
    count, removed = 0, 0
    for attempt, written_ns, path, worker, size in order:
        too_old = before_ns is not None and 0 < written_ns < before_ns
        if too_old or (keep_bytes is not None and left > keep_bytes):
            going.setdefault((attempt, worker), []).append(path)
            left, count, removed = left - size, count + 1, removed + size
    for (attempt, worker), paths in going.items():
        _remove(store, attempt, worker, paths)
        store.prune(f"{layout.attempt_path(attempt)}/tensors")
    return count, removed


def _written_ns(store: Store, covers: Sequence[Covered]) -> dict[str, int]:
    """When files of raw tensors were written: the begin of the segment whose rows name them."""
    found: dict[str, int] = {}
    for covered in covers:
        wall_ns = 0
        with suppress(UnfitError, MissingFileError):
            for frame in whole_frames(store, covered.frames):
                with suppress(DamagedDataError):
                    if frame.kind == FrameKind.HEADER:
                        value = decode_header(frame.payload).get("wall_ns")
                        wall_ns = value if type(value) is int else wall_ns
                    elif frame.kind == FrameKind.RAW:
                        found.update(dict.fromkeys(decode_rows(RAW, frame.payload, [])["file"].tolist(), wall_ns))
    return found


def _files(store: Store, attempt: int) -> dict[str, list[tuple[str, int]]]:
    """Files of raw tensors of an attempt with their sizes, by worker, oldest first."""
    found: dict[str, list[tuple[str, int]]] = {}
    for entry in store.list(f"{layout.attempt_path(attempt)}/tensors"):
        parsed = layout.parse_tensors(entry.path)
        if parsed is not None:
            found.setdefault(parsed[1], []).append((entry.path, entry.size))
    return found


def _remove(store: Store, attempt: int, worker: str, paths: list[str]) -> None:
    """Remove files; that they are removed is written down first. They are the oldest of their worker."""
    if not paths:
        return
    last = max(parsed[2] for path in paths if (parsed := layout.parse_tensors(path)))
    below = max(_removed_below(store, attempt, worker), last + 1)
    store.write(layout.retention(attempt, worker), json.dumps({"removed_below": below}).encode(), replace=True)
    for path in paths:
        store.delete(path)


def _removed_below(store: Store, attempt: int, worker: str) -> int:
    """Files of a worker with a lower number were removed."""
    below = read_document(store, layout.retention(attempt, worker)).get("removed_below")
    return below if type(below) is int else 0
