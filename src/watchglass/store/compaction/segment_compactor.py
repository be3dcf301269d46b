"""Compacts the segments of one worker into frames without statistics, and statistics in Parquet files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from watchglass.errors import DamagedDataError, InvalidValueError, MemoryBudgetError, MissingFileError, StoreError
from watchglass.records import ROW_KINDS, STATISTICS, Encoding
from watchglass.stats import Histograms
from watchglass.store import layout
from watchglass.store.compaction.collected_bytes import CollectedBytes
from watchglass.store.contract import Content, Store, check_path
from watchglass.store.encoding import histogram_columns
from watchglass.store.encoding.frames import (
    Frame,
    FrameKind,
    encode_frame,
)
from watchglass.store.encoding.rows import dtype_of
from watchglass.store.encoding.statistics_batch import FLAT, StatisticsBatch, decode_statistics
from watchglass.store.memory_budget import Charges
from watchglass.store.object_frames import frames_of
from watchglass.store.parquet.index import end_crc
from watchglass.store.parquet.reading import ParquetStatistics
from watchglass.store.parquet.writing import encode_block, sorted_rows

#: A block of statistics ends with the first whole step after this number of rows, or of bins of histograms. It takes at
#: most about 200 MiB of memory, and three times as much while it is sorted and written.
BLOCK_ROWS, _BLOCK_BINS = 1 << 18, 1 << 23
#: It also ends after this number of bytes of other frames.
_BLOCK_BYTES = 64 << 20
_CHUNK = 4 << 20
_JOINED_BYTES = 1 << 20
_CHECKED_ROWS = 1 << 15
_SCHEMA = 1

_COLUMNS = {*(field.name for field in STATISTICS.fields), *histogram_columns.NAMES}


class UnfitError(Exception):
    """Data that compaction would lose, in half a sentence; it is not compacted."""


def condense(
    store: Store,
    generation: int,
    attempt: int,
    worker: str,
    sources: Sequence[str],
    tick: Callable[[], None],
    written: dict[str, int],
    block_rows: int,
) -> int:
    """Write the frames object and the Parquet files of one worker, and read back what was written.

    Args:
        store: The store of a run.
        generation: Number of the generation that they become part of.
        attempt: Attempt of the worker.
        worker: Its name.
        sources: What its frames are in, in order: the frames object of an earlier generation, then segments.
        tick: Called from time to time.
        written: Gets the path and the length of each object as soon as it was written, even if a later one fails.
        block_rows: Number of rows after which a file of statistics ends, with the first whole step.

    Returns:
        The number of rows of statistics.

    Raises:
        UnfitError: Something in it cannot be read, or would not be kept.
        StoreError: The store refused, or does not hold what was written.
    """
    with _Condenser(store, generation, attempt, worker, written, block_rows) as condenser:
        for path in sources:
            for frame in whole_frames(store, path):
                condenser.add(frame)
                tick()  # the frames of an earlier generation are one object, however many they are
        return condenser.finish()


class _Condenser(AbstractContextManager["_Condenser"]):
    def __init__(
        self, store: Store, generation: int, attempt: int, worker: str, written: dict[str, int], block_rows: int
    ) -> None:
        self._store, self._generation, self._attempt, self._worker = store, generation, attempt, worker
        self._written, self._block_rows = written, block_rows
        self._frames = CollectedBytes()
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._joined: dict[int, list[bytes]] = {}
        self._joined_bytes = 0
        self._batches: list[StatisticsBatch] = []
        self._rows = self._bins = self._files = self._done = 0
        self._first_end: int | None = None
        self._charges = Charges()

    def add(self, frame: Frame) -> None:
        """Take in the next frame."""
        if frame.schema != _SCHEMA:
            self._pass_on(frame)
        elif frame.kind == FrameKind.STATISTICS:
            self._add_statistics(frame)
        elif frame.kind == FrameKind.COMPACTED:
            self._end_block()
            self._copy_file(frame)
        elif _is_joined(frame):
            self._join(frame)
        else:
            self._pass_on(frame)

    def finish(self) -> int:
        """Write what is left; returns how many rows of statistics there were."""
        self._end_block()
        path = layout.compacted_frames(self._generation, self._attempt, self._worker)
        with self._frames.parts() as parts:
            self._write(path, parts, self._frames.size)
        _check_written(self._store, path, self._frames.size, self._frames.crc)
        return self._done

    def __exit__(self, *exc: object) -> None:
        self._frames.close()

    def _add_statistics(self, frame: Frame) -> None:
        try:
            unknown = set(_column_names(frame.payload)) - _COLUMNS
            batch = decode_statistics(frame.payload)
        except DamagedDataError as error:
            raise UnfitError(f"{frame.source} at byte {frame.offset}: {error}") from error
        if unknown:
            shown = ", ".join(sorted(unknown))
            raise UnfitError(f"it was written by a newer watchglass, with columns that this one lacks: {shown[:80]!a}")
        if len(batch):
            self._charge(batch.nbytes)
            self._batches.append(batch)
            self._rows += len(batch)
            self._bins += len(batch.histograms.keys) if batch.histograms is not None else 0
        if self._rows > 2 * self._block_rows or self._bins > 2 * _BLOCK_BINS:
            self._end_block()

    def _join(self, frame: Frame) -> None:
        """Hold a frame of rows back, so that others of its kind can be joined to it."""
        if self._joined_bytes >= _JOINED_BYTES:
            self._write_joined()
        self._joined.setdefault(frame.kind, []).append(frame.payload)
        self._joined_bytes += len(frame.payload)
        full = self._rows >= self._block_rows or self._bins >= _BLOCK_BINS or self._block_bytes >= _BLOCK_BYTES
        if frame.kind == FrameKind.STEP_ENDS and full:
            self._end_block()

    def _pass_on(self, frame: Frame) -> None:
        """Write a frame as it is. Of rows held back, those that end steps thus come behind it, as they may."""
        if frame.kind in (FrameKind.HEADER, FrameKind.LIFECYCLE):
            self._write_joined()
        self._add(encode_frame(frame.kind, frame.payload, frame.schema))

    def _add(self, frame: bytes) -> None:
        self._charge(len(frame))
        self._block.append(frame)
        self._block_bytes += len(frame)

    def _write_joined(self) -> None:
        """Write the rows that were held back; those that end steps behind all others."""
        for kind in sorted(self._joined, key=lambda number: (number == FrameKind.STEP_ENDS, number)):
            payloads = self._joined.pop(kind)
            if kind == FrameKind.STEP_ENDS and self._first_end is None:
                self._first_end = len(self._block)
            self._add(encode_frame(kind, b"".join(payloads)))
        self._joined_bytes = 0

    def _end_block(self) -> None:
        """Write the statistics so far as a file, and the frames so far with the frame that names it."""
        self._write_joined()
        frames, split = self._block, self._first_end
        for frame in frames[:split]:
            self._frames.add(frame)
        if self._batches:
            self._write_file()
        for frame in frames[len(frames) if split is None else split :]:
            self._frames.add(frame)
        self._block, self._block_bytes, self._first_end = [], 0, None
        self._charges.clear()

    def _write_file(self) -> None:
        with_bins = any(batch.histograms is not None for batch in self._batches)
        batch = StatisticsBatch.concatenate(self._batches, histograms=with_bins)
        self._batches.clear()
        self._rows = self._bins = 0
        batch = sorted_rows(batch)
        steps = (int(batch.global_step.min()), int(batch.global_step.max()))
        file = self._write_next(encode_block(batch), len(batch), steps)
        _check_statistics(self._store, file, batch)

    def _copy_file(self, frame: Frame) -> None:
        """Take a file of an earlier generation over as it is."""
        old = compacted_file(frame)
        self._charge(old.bytes)
        data = self._store.read(old.path, 0, old.bytes + 1)
        if len(data) != old.bytes or end_crc(data) != old.footer_crc:
            raise UnfitError(f"{old.path} is not what was written: {len(data)} of {old.bytes} bytes, or another footer")
        file = self._write_next(data, old.rows, old.global_steps)
        _check_written(self._store, file.path, len(data), zlib.crc32(data))
        self._charges.clear()

    def _charge(self, size: int) -> None:
        """Charge what a block holds to the budget of this process, up to the end of the block."""
        try:
            self._charges.add(size)
        except MemoryBudgetError as error:
            raise UnfitError(str(error)) from error

    def _write(self, path: str, content: Content, size: int) -> None:
        self._store.write(path, content)
        self._written[path] = size

    def _write_next(self, data: bytes, rows: int, steps: tuple[int, int]) -> CompactedFile:
        """Write the next file of statistics, and the frame that names it."""
        path = layout.compacted_statistics(self._generation, self._attempt, self._worker, self._files)
        file = CompactedFile(path, rows, len(data), steps, end_crc(data))
        self._write(path, data, len(data))
        self._frames.add(encode_frame(FrameKind.COMPACTED, json.dumps(file._asdict()).encode()))
        self._files, self._done = self._files + 1, self._done + rows
        return file


def _is_joined(frame: Frame) -> bool:
    """Whether a frame has rows of one length, so that two frames are as good as one with the rows of both."""
    kind = ROW_KINDS.get(frame.kind)
    return kind is not None and kind.encoding is Encoding.ROWS and not len(frame.payload) % dtype_of(kind).itemsize


def check_condensed(store: Store, frames: str, tick: Callable[[], None]) -> None:
    """Make sure that everything :func:`condense` wrote of a worker is there.

    Frames are read whole. Of files of statistics, only the index and the footer are read.

    Raises:
        UnfitError: Something is missing or damaged.
        MissingFileError: The object of frames is not there.
    """
    for frame in whole_frames(store, frames):
        tick()
        if frame.kind != FrameKind.COMPACTED:
            continue
        try:
            file = compacted_file(frame)
            found = store.size(file.path)
            if found != file.bytes:
                raise DamagedDataError(f"{file.path} is missing or has {found} and not {file.bytes} bytes")
            ParquetStatistics(store, file.path, size=file.bytes, footer_crc=file.footer_crc)
        except (DamagedDataError, MissingFileError) as error:
            raise UnfitError(str(error)) from error


class CompactedFile(NamedTuple):
    """The content of a COMPACTED frame: a file of statistics."""

    path: str  #: Where it is.
    rows: int  #: Its number of rows.
    bytes: int  #: Its length.
    global_steps: tuple[int, int]  #: Least and greatest global step, both included.
    footer_crc: int  #: CRC-32 of its index and footer.


def compacted_file(frame: Frame) -> CompactedFile:
    """The content of a COMPACTED frame.

    Raises:
        DamagedDataError: It makes no sense, or names something that is not below the folder of compacted data.
    """
    try:
        value = json.loads(frame.payload)
        path, rows, size, (first, last), crc = (
            value[name] for name in ("path", "rows", "bytes", "global_steps", "footer_crc")
        )
        sound = all(type(number) is int and 0 <= number < 1 << 63 for number in (rows, size, first, last, crc))
        if not sound or first > last or not check_path(path).startswith(f"{layout.COMPACTED}/"):
            raise InvalidValueError("an impossible number or path")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedDataError(
            f"{frame.source} at byte {frame.offset} names compacted statistics wrongly: {str(error)[:120]}"
        ) from error
    return CompactedFile(path, rows, size, (first, last), crc)


def whole_frames(store: Store, path: str) -> Iterator[Frame]:
    """All frames of an object; a last one that was not written whole is omitted.

    Raises:
        UnfitError: It is damaged.
    """
    damaged_at = yield from frames_of(store, path)
    if damaged_at is not None:
        raise UnfitError(f"{path} is damaged at byte {damaged_at}")


def _column_names(payload: bytes) -> list[str]:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(payload) as stream:
            return list(stream.schema.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedDataError(f"a batch of statistics is not an Arrow stream ({str(error)[:120]})") from error


def _check_written(store: Store, path: str, size: int, crc: int) -> None:
    """Read an object back.

    Raises:
        StoreError: It is not what was written.
    """
    at, found = 0, 0
    try:
        while data := store.read(path, at, at + _CHUNK):
            at, found = at + len(data), zlib.crc32(data, found)
    except MissingFileError:
        at = -1
    if (at, found) != (size, crc):
        raise StoreError(f"{path} in {store.location} is not what was written just now; check the disk or the bucket")


def _check_statistics(store: Store, written: CompactedFile, batch: StatisticsBatch) -> None:
    """Read a file of statistics back and compare each bit of it with its sorted rows, some tensors at a time.

    Raises:
        StoreError: It is not what was written.
    """
    path, same = written.path, True
    try:
        file = ParquetStatistics(store, path, size=written.bytes, footer_crc=written.footer_crc)
        same = file.rows == len(batch)
        ids = np.unique(batch.tensor_id)
        at = 0
        while same and at < len(ids):
            begin, stop = np.searchsorted(batch.tensor_id, ids[at]), at + 1
            while stop < len(ids) and np.searchsorted(batch.tensor_id, ids[stop], "right") - begin <= _CHECKED_ROWS:
                stop += 1
            end = np.searchsorted(batch.tensor_id, ids[stop - 1], "right")
            found = file.read(tensor_ids=ids[at:stop].tolist(), histograms=True)
            same = _is_same(found, batch.take(np.arange(begin, end)))
            at = stop
    except (DamagedDataError, MissingFileError) as error:
        raise StoreError(f"{path} in {store.location} cannot be read back: {error}") from error
    if not same:
        raise StoreError(f"{path} in {store.location} is not what was written just now; check the disk or the bucket")


def _is_same(a: StatisticsBatch, b: StatisticsBatch) -> bool:
    if any(
        np.ascontiguousarray(getattr(a, name)).tobytes() != np.ascontiguousarray(getattr(b, name)).tobytes()
        for name in FLAT
    ):
        return False
    none = Histograms.none(len(a))
    x, y = (each.histograms if each.histograms is not None else none for each in (a, b))
    return all(np.array_equal(getattr(x, name), getattr(y, name)) for name in ("seen", "offsets", "keys", "counts"))
