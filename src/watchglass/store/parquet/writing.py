"""Statistics of a block of steps as a Parquet file, sorted by tensor, then step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import COUNT_FIELDS, STATISTIC_FIELDS
from watchglass.stats import Histograms
from watchglass.store.encoding.statistics_batch import StatisticsBatch
from watchglass.store.parquet import file_schema
from watchglass.store.parquet.count_matrices import MAX_CELLS, MAX_GROUP_CELLS, encode
from watchglass.store.parquet.index import add_index

#: Rows of a row group: a reader of one tensor reads and decodes this many.
GROUP_ROWS = 16_384
#: Zstandard level. docs/run-format.md compares others.
_LEVEL = 9
_PAGE_BYTES = 8 << 20


def encode_block(batch: StatisticsBatch, most_cells: int = MAX_CELLS, most_group_cells: int = MAX_GROUP_CELLS) -> bytes:
    """A file of the rows of :func:`sorted_rows`.

    Args:
        batch: The rows.
        most_cells: Bound of the cells of a matrix of histograms.
        most_group_cells: Bound of the cells of all matrices of a row group.

    Raises:
        InvalidValueError: There is no row, or a count is negative or NaN.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not len(batch):
        raise InvalidValueError("a block of statistics must have at least one row")
    if not (batch.values[:, : len(COUNT_FIELDS)] >= 0).all():
        raise InvalidValueError("counts of statistics must be at least 0; reduce the tensor again")
    schema = file_schema.schema()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, schema, version="2.6", compression="zstd", compression_level=_LEVEL, use_dictionary=False,
        column_encoding=file_schema.encodings(), write_statistics=["tensor_id", "global_step"],
        store_schema=False, data_page_size=_PAGE_BYTES, write_page_checksum=True,
    ) as writer:  # fmt: skip
        for columns in _groups(batch, most_cells, most_group_cells):
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            table = pa.Table.from_arrays(arrays, schema=schema)
            writer.write_table(table, row_group_size=len(table))
    return add_index(sink.getvalue().to_pybytes())


def sorted_rows(batch: StatisticsBatch) -> StatisticsBatch:
    """The rows by tensor, then step; of several rows of one step, tensor and origin only the last."""
    order = np.lexsort((batch.global_step, batch.tensor_id))  # stable: rows of one step stay in the order of writing
    step, tensor, origin = (column[order] for column in (batch.global_step, batch.tensor_id, batch.origin))
    same = (step[1:] == step[:-1]) & (tensor[1:] == tensor[:-1])
    if same.any():
        keep = np.ones(len(order), bool)
        last: dict[tuple[int, int, int], int] = {}
        twice = np.flatnonzero(same)
        for row in np.union1d(twice, twice + 1).tolist():
            key = (int(step[row]), int(tensor[row]), int(origin[row]))
            if key in last:
                keep[last[key]] = False
            last[key] = row
        order = order[keep]
    return batch.take(order)


def _groups(batch: StatisticsBatch, most_cells: int, most_group_cells: int) -> Iterator[dict[str, Any]]:
    """The columns of each row group."""
    begin = 0
    while begin < len(batch):
        end = min(len(batch), begin + GROUP_ROWS)
        while True:
            part = batch.take(np.arange(begin, end))
            histograms = _histogram_columns(part, most_cells, most_group_cells)
            if histograms is not None or end - begin == 1:
                break
            end = begin + (end - begin) // 2
        yield _flat_columns(part) | (histograms or {})
        begin = end


def _flat_columns(batch: StatisticsBatch) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(batch, name).astype(dtype) for name, dtype in file_schema.KEYS}
    for name in file_schema.PLAIN:
        values = np.ascontiguousarray(batch.values[:, STATISTIC_FIELDS.index(name)])
        columns[name] = values.astype(np.uint64) if name in COUNT_FIELDS else values
    columns[file_schema.L2_DIFFERENCE] = file_schema.l2_difference(batch.values)
    return columns


def _histogram_columns(batch: StatisticsBatch, most_cells: int, most_group_cells: int) -> dict[str, Any] | None:
    """The columns of histograms; None where they exceed the limit of a row group."""
    rows = len(batch)
    histograms = batch.histograms if batch.histograms is not None else Histograms.none(rows)
    steps: NDArray[np.uint32] = np.zeros(rows, np.uint32)
    keys, planes = [b""] * rows, [b""] * rows
    cells = 0
    for begin, matrix in encode(histograms, _runs(batch.tensor_id), most_cells):
        steps[begin], keys[begin], planes[begin] = matrix
        cells += matrix.steps * (len(matrix.keys) // 2)
        if cells > most_group_cells and rows > 1:
            return None
    return {
        file_schema.SEEN: histograms.seen.astype(np.uint64), file_schema.STEPS: steps,
        file_schema.HISTOGRAM_KEYS: keys, file_schema.PLANES: planes,
    }  # fmt: skip


def _runs(ids: NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Half-open ranges of rows of one tensor each."""
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(ids)], strict=True))
