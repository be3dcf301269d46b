"""Reads compacted statistics: from a Parquet file only the requested row groups and columns."""

from __future__ import annotations

import io
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, InvalidValueError, MissingFileError, StoreError
from watchglass.records import COUNT_FIELDS, STATISTIC_FIELDS
from watchglass.stats import Histograms
from watchglass.store.contract import Store
from watchglass.store.encoding.arrow_columns import as_array
from watchglass.store.encoding.statistics_batch import StatisticsBatch, matrix_of
from watchglass.store.parquet import count_matrices, file_schema
from watchglass.store.parquet.index import Group, end_bytes, read_index
from watchglass.store.parquet.page_bounds import check_pages

#: Bytes at the end of a file that are read first; the footer of most files is shorter.
_TAIL = 1 << 16
_MAX_COLUMNS = 256
#: Most bytes that the columns read of a row group may take.
MAX_GROUP_BYTES = 256 << 20
#: Compressed bytes that are fetched at once: a slow store gets one request for several ranges.
_FETCH = 32 << 20


class ParquetStatistics:
    """A file of compacted statistics. Opening it reads its footer. For one thread; holds no open file.

    Args:
        store: The store of the file.
        path: The file.
        size: Its length in bytes.
        footer_crc: CRC-32 of its index and footer, where that is known; all else in the file has checksums.

    Attributes:
        rows: Number of rows.

    Raises:
        MissingFileError: There is no such file.
        DamagedDataError: It is no file of statistics.
    """

    def __init__(self, store: Store, path: str, *, size: int, footer_crc: int | None = None) -> None:
        self._store, self._path, self._size = store, path, size
        with _damage(path):
            end = self._read_end()
            if footer_crc is not None and zlib.crc32(end) != footer_crc:
                raise DamagedDataError("its index or footer has a wrong checksum")
            self._groups = read_index(end, size)
            self._bytes = _Ranges(size, end)
            self.rows = sum(group.rows for group in self._groups)
            self._open()

    def read(
        self,
        *,
        tensor_ids: Collection[int] | None = None,
        steps: tuple[int, int] | None = None,
        fields: Sequence[str] | None = None,
        histograms: bool = False,
    ) -> StatisticsBatch:
        """Rows by tensor, then global step; those of one step and tensor in the order in which they were written.

        Args:
            tensor_ids: Of these tensors; None for all.
            steps: Of global steps of this half-open range; None for all.
            fields: Which of :data:`~watchglass.records.STATISTIC_FIELDS` are the columns of ``values``; None for all.
            histograms: Also the histograms; None where no row has one.

        Raises:
            InvalidValueError: A field is no statistic.
            MissingFileError: The file was removed since it was opened.
            DamagedDataError: It is damaged, or would take more memory than a file of statistics can.
        """
        wanted = tuple(STATISTIC_FIELDS if fields is None else fields)
        if not set(wanted) <= set(STATISTIC_FIELDS):
            unknown = sorted(set(wanted) - set(STATISTIC_FIELDS))
            raise InvalidValueError(f"statistics are {', '.join(STATISTIC_FIELDS)} but got {', '.join(unknown)}")
        columns = _columns_of(wanted, histograms)
        ids = None if tensor_ids is None else np.array(sorted(int(tensor_id) for tensor_id in tensor_ids), np.int64)
        groups = [number for number, group in enumerate(self._groups) if _overlaps(group, ids, steps)]
        parts = []
        for group in self._fetched(groups, columns):
            with _damage(self._path):
                table = self._file.read_row_group(group, columns=columns, use_threads=False)
                if len(table) != self._groups[group].rows:
                    raise DamagedDataError(f"a row group has {len(table)} rows, other than its index")
                part = _batch(table, wanted, histograms, ids, steps)
            if len(part):
                parts.append(part)
        found = StatisticsBatch.concatenate(parts, histograms=histograms)
        if found.histograms is not None and not found.histograms.seen.any():
            found.histograms = None
        return found

    def _read_end(self) -> bytes:
        """The file from its index on."""
        tail, wanted = b"", _TAIL
        while len(tail) < min(wanted, self._size):
            tail = self._store.read(self._path, max(0, self._size - wanted), self._size)
            if len(tail) != min(wanted, self._size):
                raise DamagedDataError(f"it is shorter than its {self._size} bytes")
            wanted = max(wanted, end_bytes(tail, self._size))
        return tail[-end_bytes(tail, self._size) :]

    def _open(self) -> None:
        """Let Arrow read the footer. Never ask it for metadata of row groups or columns: see the module index."""
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(
            self._bytes, pre_buffer=False, page_checksum_verification=True,
            thrift_string_size_limit=1 << 20, thrift_container_size_limit=1 << 20,
        )  # fmt: skip
        metadata = self._file.metadata
        if (metadata.num_row_groups, metadata.num_rows) != (len(self._groups), self.rows):
            raise DamagedDataError(f"{metadata.num_rows} rows in its footer differ from its index")
        if not 1 <= metadata.num_columns <= _MAX_COLUMNS:
            raise DamagedDataError(f"it claims {metadata.num_columns} columns")
        self._check_columns(metadata.schema)

    def _check_columns(self, schema: Any) -> None:
        actual = schema.to_arrow_schema()
        places = {schema.column(at).path: at for at in range(len(schema))}
        for field in file_schema.schema():
            at = places.get(field.name)
            if at is None or actual.get_field_index(field.name) < 0:
                raise DamagedDataError(f"it lacks the column {field.name!r} (or has it twice)")
            column = schema.column(at)
            kind = actual.field(field.name).type
            if kind != field.type or column.max_definition_level or column.max_repetition_level:
                raise DamagedDataError(f"its column {field.name!r} is {kind}")

    def _fetched(self, groups: list[int], columns: list[str]) -> Iterator[int]:
        """The row groups, each after its columns were fetched and checked."""
        at = 0
        while at < len(groups):
            batch, total = [groups[at]], self._size_of(groups[at], columns)
            at += 1
            while at < len(groups) and total < _FETCH:
                batch.append(groups[at])
                total += self._size_of(groups[at], columns)
                at += 1
            self._fetch([self._groups[group].columns[name] for group in batch for name in columns])
            for group in batch:
                self._guard(group, columns)
                yield group
            self._bytes.forget()

    def _size_of(self, group: int, columns: list[str]) -> int:
        places = self._groups[group].columns
        return sum(places[name][1] - places[name][0] for name in columns)

    def _fetch(self, ranges: list[tuple[int, int]]) -> None:
        joined: list[list[int]] = []
        for start, stop in sorted(ranges):
            if joined and start <= joined[-1][1] + 4096:
                joined[-1][1] = max(joined[-1][1], stop)
            else:
                joined.append([start, stop])
        found = self._store.read_many([(self._path, start, stop) for start, stop in joined])
        for (start, stop), data in zip(joined, found, strict=True):
            if data is None:
                raise MissingFileError(f"{self._path} in {self._store.location} was removed; open the run again")
            if len(data) != stop - start:
                raise DamagedDataError(f"{self._path} is shorter than its {self._size} bytes")
            for first, last in ranges:
                if start <= first and last <= stop:
                    self._bytes.add(first, data[first - start : last - start])

    def _guard(self, group: int, columns: list[str]) -> None:
        left, rows = MAX_GROUP_BYTES, self._groups[group].rows
        for name in columns:
            start, stop = self._groups[group].columns[name]
            try:
                left -= check_pages(self._bytes.part(start, stop), values=rows, max_bytes=left)
            except DamagedDataError as error:
                raise DamagedDataError(f"{self._path} at byte {start}: {error}") from error


class _Ranges(io.RawIOBase):
    """A file for Arrow with only its end, and the fetched columns, each of which Arrow reads in one piece."""

    def __init__(self, size: int, end: bytes) -> None:
        self._size, self._at, self._end = size, 0, end
        self._parts: dict[tuple[int, int], bytes] = {}

    def add(self, start: int, data: bytes) -> None:
        self._parts[start, start + len(data)] = data

    def forget(self) -> None:
        self._parts.clear()

    def part(self, start: int, stop: int) -> bytes:
        found = self._parts.get((start, stop))
        if found is None:
            raise DamagedDataError(f"its footer has a column at bytes {start} to {stop}, its index has none")
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else self._size)
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        start, stop = self._at, self._size if size is None or size < 0 else min(self._size, self._at + size)
        if stop <= start:
            return b""
        self._at = stop
        if not self._parts:  # while it is opened: Arrow reads more of the end than it needs
            behind = self._end[max(0, start - (self._size - len(self._end))) : len(self._end) - (self._size - stop)]
            return bytes(stop - start - len(behind)) + behind
        return self.part(start, stop)


@contextmanager
def _damage(path: str) -> Iterator[None]:
    """Turns any error that Arrow raises for damaged bytes into an error of watchglass."""
    import pyarrow as pa

    try:
        yield
    except (StoreError, MissingFileError):
        raise
    except DamagedDataError as error:
        if path in str(error):
            raise
        raise DamagedDataError(f"{path}: {error}") from error
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:
        raise DamagedDataError(f"{path} is not a valid Parquet file ({str(error)[:120]})") from error


def _columns_of(fields: tuple[str, ...], histograms: bool) -> list[str]:
    needed = {name for name, _ in file_schema.KEYS} | set(fields)
    if "l2" in needed:
        needed |= set(file_schema.OF_L2)
    if histograms:
        needed |= set(file_schema.HISTOGRAM)
    return [name for name in file_schema.NAMES if name in needed]


def _overlaps(group: Group, ids: NDArray[np.int64] | None, steps: tuple[int, int] | None) -> bool:
    if steps is not None and (group.global_steps[1] < steps[0] or group.global_steps[0] >= steps[1]):
        return False
    return ids is None or bool(((ids >= group.tensor_ids[0]) & (ids <= group.tensor_ids[1])).any())


def _batch(
    table: Any,
    fields: tuple[str, ...],
    histograms: bool,
    ids: NDArray[np.int64] | None,
    steps: tuple[int, int] | None,
) -> StatisticsBatch:
    """The requested rows of a row group."""
    tensor_id, global_step = (_array(table, name) for name in ("tensor_id", "global_step"))
    ordered = (tensor_id[1:] > tensor_id[:-1]) | (
        (tensor_id[1:] == tensor_id[:-1]) & (global_step[1:] >= global_step[:-1])
    )
    if not ordered.all():
        raise DamagedDataError("rows of compacted statistics are not sorted by tensor, then step")
    chosen = np.ones(len(tensor_id), bool) if ids is None else np.isin(tensor_id, ids)
    if steps is not None:
        first, stop = (min(max(step, 0), (1 << 63) - 1) for step in steps)
        chosen &= (global_step >= np.uint64(first)) & (global_step < np.uint64(stop))
    rows = np.flatnonzero(chosen)
    columns = {name: _array(table, name)[rows] for name in _columns_of(fields, histograms=False)}
    if "l2" in fields:
        columns["l2"] = file_schema.restored_l2(columns)
    values = matrix_of([columns[name] for name in fields], len(rows))
    keys = {name: columns[name] for name, _ in file_schema.KEYS}
    return StatisticsBatch(values=values, **keys, histograms=_histograms(table, rows) if histograms else None)


def _histograms(table: Any, rows: NDArray[np.intp]) -> Histograms:
    """The histograms of some rows of a row group; only matrices with at least one of these rows are decoded."""
    seen, steps = _array(table, file_schema.SEEN), _array(table, file_schema.STEPS)
    if len(seen) and int(seen.max()) >= 1 << 63:
        raise DamagedDataError("a histogram has an impossible number of elements")
    begins = np.flatnonzero(steps)
    ends = begins + steps[begins].astype(np.int64)
    needed = np.searchsorted(rows, ends) > np.searchsorted(rows, begins)
    keys, planes = (table.column(name) for name in (file_schema.HISTOGRAM_KEYS, file_schema.PLANES))
    matrices = [
        (begin, count_matrices.Matrix(int(steps[begin]), keys[begin].as_py(), planes[begin].as_py()))
        for begin in begins[needed].tolist()
    ]
    # Rows outside the decoded matrices have wrong histograms here; none of them is taken.
    return count_matrices.decode(matrices, seen).take(rows)


def _array(table: Any, name: str) -> NDArray[Any]:
    array = as_array(table.column(name))
    if name in COUNT_FIELDS and len(array) and int(array.max()) > 1 << 53:
        raise DamagedDataError(f"the column {name!r} of compacted statistics has impossible counts")
    return array
