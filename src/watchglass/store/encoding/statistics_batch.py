"""Statistics rows and their histograms as Arrow record batches. The only file that touches Arrow, and lazily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.records import COUNT_FIELDS, STATISTIC_FIELDS, STATISTICS
from watchglass.stats import Histograms
from watchglass.store.encoding import histogram_columns
from watchglass.store.encoding.arrow_columns import MAX_DECODED, arrow_array, as_array, flat_columns
from watchglass.store.encoding.arrow_guard import decoded_bytes, read_layout
from watchglass.store.encoding.frames import FrameKind, encode_frame
from watchglass.store.encoding.rows import dtype_of

#: Every flat column and its dtype as this release writes it.
_DTYPES: dict[str, np.dtype[Any]] = {name: dtype_of(STATISTICS)[name] for name in dtype_of(STATISTICS).names or ()}
#: The columns that rows have in addition to their statistics.
KEYS = tuple(name for name in _DTYPES if name not in STATISTIC_FIELDS)
#: Columns of :class:`StatisticsBatch`, except for histograms.
FLAT = (*KEYS, "values")


@dataclass
class StatisticsBatch:
    """Statistics of tensors at steps, n rows."""

    global_step: NDArray[np.uint64]  #: u64[n], worker's step.
    tensor_id: NDArray[np.uint32]  #: u32[n].
    calls: NDArray[np.uint32]  #: u32[n], how many tensors (module calls, micro-batches) were merged into the row.
    #: float64[n, 11], columns as :data:`~watchglass.records.STATISTIC_FIELDS`; where only some of these were requested,
    #: those in the requested order.
    values: NDArray[np.float64]
    origin: NDArray[np.uint8]  #: u8[n], an :class:`~watchglass.records.Origin`.
    sampled: NDArray[np.bool_]  #: bool[n], whether the row is of a fixed sample of the tensor's elements.
    #: Of n tensors, some of them none; None where no row has one or they were not requested.
    histograms: Histograms | None = None

    def __len__(self) -> int:
        return len(self.global_step)

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        flat: int = sum(getattr(self, name).nbytes for name in FLAT)
        return flat if self.histograms is None else flat + self.histograms.nbytes

    @classmethod
    def concatenate(cls, parts: Sequence[StatisticsBatch], *, histograms: bool) -> StatisticsBatch:
        """The rows of all parts, which may be none; with histograms, those that lack them have empty ones."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {
            "values": np.concatenate([part.values for part in parts] or [np.empty((0, len(STATISTIC_FIELDS)))])
        }
        for name in KEYS:
            columns[name] = np.concatenate([np.empty(0, _DTYPES[name]), *(getattr(part, name) for part in parts)])
        known = [part.histograms if part.histograms is not None else Histograms.none(len(part)) for part in parts]
        return cls(**columns, histograms=Histograms.concatenate([Histograms.none(0), *known]) if histograms else None)

    def take(self, rows: NDArray[Any]) -> StatisticsBatch:
        """Some of the rows, by index or mask."""
        taken = {name: getattr(self, name)[rows] for name in FLAT}
        return StatisticsBatch(**taken, histograms=None if self.histograms is None else self.histograms.take(rows))


def encode_statistics(batch: StatisticsBatch) -> bytes:
    """A STATISTICS frame: an Arrow IPC stream of one record batch, buffers compressed with Zstandard.

    Counts become unsigned integers: a value that is no count (negative, NaN) raises.

    Raises:
        InvalidValueError: Columns differ in length, or a count is none.
    """
    import pyarrow as pa

    rows = len(batch)
    if batch.values.shape != (rows, len(STATISTIC_FIELDS)):
        raise InvalidValueError(
            f"statistics must have shape ({rows}, {len(STATISTIC_FIELDS)}) but got {tuple(batch.values.shape)}"
        )
    counts = batch.values[:, : len(COUNT_FIELDS)]
    if rows and not (counts >= 0).all():
        raise InvalidValueError("counts of statistics must be at least 0; reduce the tensor again")
    columns: dict[str, Any] = {name: np.ascontiguousarray(getattr(batch, name), dtype=_DTYPES[name]) for name in KEYS}
    for index, name in enumerate(STATISTIC_FIELDS):
        columns[name] = np.ascontiguousarray(batch.values[:, index]).astype(_DTYPES[name], copy=False)
    if batch.histograms is not None:
        columns.update(histogram_columns.encode(batch.histograms, rows))
    arrays = [column if isinstance(column, pa.Array) else arrow_array(column) for column in columns.values()]
    table = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    codec = next((name for name in ("zstd", "lz4") if pa.Codec.is_available(name)), None)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_batch(table)
    return encode_frame(FrameKind.STATISTICS, sink.getvalue())


def decode_statistics(payload: bytes | memoryview, *, histograms: bool = True) -> StatisticsBatch:
    """The statistics of a payload; columns that this release does not know are ignored.

    Args:
        payload: Of a STATISTICS frame.
        histograms: Also decode the histograms, which take several times the time and memory of the rows.

    Raises:
        DamagedDataError: It is no such stream, lacks a column, or would take more than :data:`MAX_DECODED` bytes.
    """
    columns = decode_columns(payload, [*KEYS, *STATISTIC_FIELDS])
    values = matrix_of([columns[name] for name in STATISTIC_FIELDS], len(columns["global_step"]))
    keys = {name: columns[name] for name in KEYS}
    return StatisticsBatch(values=values, histograms=decode_histograms(payload) if histograms else None, **keys)


def matrix_of(columns: Sequence[NDArray[Any]], rows: int) -> NDArray[np.float64]:
    """``values`` of a batch, float64[rows, len(columns)]."""
    # Column by column: it is filled and read in this order.
    values = np.empty((rows, len(columns)), order="F")
    for index, column in enumerate(columns):
        values[:, index] = column
    return values


def decode_columns(payload: bytes | memoryview, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Some flat columns of a payload, read-only; nothing else of it is decompressed or checked.

    Args:
        payload: Of a STATISTICS frame.
        names: Any of ``global_step``, ``tensor_id``, ``calls``, ``origin``, ``sampled`` and STATISTIC_FIELDS.

    Raises:
        DamagedDataError: As :func:`decode_statistics`.
    """
    wanted = {name: _DTYPES[name] for name in names}
    found = flat_columns(payload, wanted)
    if found is not None:
        return found
    table = _table(payload, list(names))
    return {name: _column(table, name, dtype) for name, dtype in wanted.items()}


def decode_histograms(payload: bytes | memoryview) -> Histograms | None:
    """Only the histograms of a payload; None where it has none.

    Raises:
        DamagedDataError: As :func:`decode_statistics`.
    """
    return _histograms(_table(payload, list(histogram_columns.NAMES)))


def has_histograms(payload: bytes | memoryview) -> bool:
    """Whether a payload of STATISTICS has histograms.

    Raises:
        DamagedDataError: It is no Arrow stream.
    """
    return histogram_columns.NAMES[0].encode() in read_layout(payload)[0]


def _table(payload: bytes | memoryview, names: list[str]) -> Any:
    """The named columns of a stream, as far as it has them; the others are not even decompressed."""
    import pyarrow as pa

    size = decoded_bytes(payload)
    if size > MAX_DECODED:
        raise DamagedDataError(f"a batch of statistics would take {size} bytes; at most {MAX_DECODED} are read")
    try:
        buffer = pa.py_buffer(payload)
        with pa.ipc.open_stream(buffer) as stream:
            known = stream.schema.names
        wanted = [index for index, name in enumerate(known) if name in names]
        # Handing a batch this small to a thread pool takes longer than decompressing it.
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted)
        with pa.ipc.open_stream(buffer, options=options) as stream:
            table = stream.read_all()
        table.validate()
        return table
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise DamagedDataError(f"a batch of statistics is not an Arrow stream ({str(error)[:120]})") from error


def _histograms(table: Any) -> Histograms | None:
    if histogram_columns.NAMES[0] not in table.schema.names:
        return None
    seen, first = (_column(table, name, np.dtype(kind)) for name, kind in histogram_columns.FLAT)
    found = table.schema.get_field_index(histogram_columns.BINS)
    if found < 0:
        raise DamagedDataError(f"a batch of statistics lacks the column {histogram_columns.BINS!r} (or has it twice)")
    return histogram_columns.decode(seen, first, table.column(found).chunks)


def _column(table: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """One column as an array; a later release may widen integers or floats, so those are converted."""
    found = table.schema.get_field_index(name)
    if found < 0:
        raise DamagedDataError(f"a batch of statistics lacks the column {name!r} (or has it twice)")
    column = table.column(found)
    if column.null_count:
        raise DamagedDataError(f"the column {name!r} of a batch of statistics has nulls")
    array = as_array(column)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in {"u": "ui", "i": "ui", "f": "f"}.get(dtype.kind, ""):
        raise DamagedDataError(f"the column {name!r} of a batch of statistics has type {column.type}")
    converted = array.astype(dtype)
    if dtype.kind != "f" and (converted != array).any():
        raise DamagedDataError(f"the column {name!r} of a batch of statistics has numbers that are out of range")
    return np.asarray(converted)
