"""Compacted statistics come back bit for bit, in part where asked for, and damaged files are errors and no more."""

from __future__ import annotations

import io
import itertools
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from stores.compacted_runs import rows_of
from stores.faulty_store import FaultyStore
from watchglass.errors import DamagedDataError, InvalidValueError, MissingFileError, StoreError
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import Histograms, histograms_of
from watchglass.store import LocalStore, ParquetStatistics, StatisticsBatch
from watchglass.store.parquet import count_matrices, file_schema
from watchglass.store.parquet.index import add_index, end_bytes, end_crc
from watchglass.store.parquet.page_bounds import check_pages
from watchglass.store.parquet.writing import encode_block, sorted_rows

_numbers = itertools.count()


def batch(rows: list[tuple[int, int, int]], seed: int = 0, *, histograms: bool = True) -> StatisticsBatch:
    """Rows of (step, tensor, origin) with random numbers."""
    random = np.random.default_rng(seed)
    n = len(rows)
    values = random.normal(size=(n, len(STATISTIC_FIELDS)))
    values[:, :5] = random.integers(0, 50, size=(n, 5))
    step, tensor, origin = np.array(rows, np.int64).reshape(n, 3).T
    found = histograms_of([random.normal(scale=10.0 ** random.integers(-9, 9), size=random.integers(0, 30))
                           for _ in range(n)])  # fmt: skip
    return StatisticsBatch(
        step.astype(np.uint64), tensor.astype(np.uint32), np.ones(n, np.uint32), values, origin.astype(np.uint8),
        random.random(n) < 0.3, found if histograms else None,
    )  # fmt: skip


def written(store: LocalStore, of: StatisticsBatch, **bounds: int) -> ParquetStatistics:
    path = f"{next(_numbers)}.parquet"
    data = encode_block(sorted_rows(of), **bounds)
    store.write(path, data)
    return ParquetStatistics(store, path, size=len(data), footer_crc=end_crc(data))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


GRID = [(step, tensor, 0) for step in range(40) for tensor in (3, 7, 500)]


def test_all_comes_back_sorted_by_tensor_and_step(store: LocalStore) -> None:
    given = batch(GRID)
    file = written(store, given)
    found = file.read(histograms=True)
    assert (file.rows, found.global_step.min(), found.global_step.max()) == (120, 0, 39)
    assert found.tensor_id.tolist() == sorted(given.tensor_id.tolist())
    assert rows_of(found) == rows_of(given)


def test_only_what_is_asked_for(store: LocalStore) -> None:
    given = batch(GRID)
    found = written(store, given).read(tensor_ids=[7, 9], steps=(10, 12), fields=("l2", "zero"))
    assert found.global_step.tolist() == [10, 11]
    assert set(found.tensor_id.tolist()) == {7}
    assert found.histograms is None
    rows = (given.tensor_id == 7) & np.isin(given.global_step, [10, 11])
    columns = [STATISTIC_FIELDS.index("l2"), STATISTIC_FIELDS.index("zero")]
    np.testing.assert_array_equal(found.values, given.values[rows][:, columns])
    assert len(written(store, given).read(tensor_ids=[])) == 0
    assert len(written(store, given).read(steps=(40, 1 << 70))) == 0
    with pytest.raises(InvalidValueError, match="kurtosis"):
        written(store, given).read(fields=("kurtosis",))


def test_histograms_of_some_rows_and_of_none(store: LocalStore) -> None:
    given = batch(GRID)
    found = written(store, given).read(tensor_ids=[500], steps=(20, 23), histograms=True)
    assert rows_of(found) == {key: row for key, row in rows_of(given).items() if key[1] == 500 and 20 <= key[0] < 23}
    assert written(store, batch(GRID, histograms=False)).read(histograms=True).histograms is None


def test_one_tensor_of_many_takes_little(tmp_path: Path) -> None:
    read: list[int] = []

    class Counting(LocalStore):
        def read_many(self, ranges: Any) -> Any:
            read.extend(stop - start for _, start, stop in ranges)
            return super().read_many(ranges)

    store = Counting(tmp_path)
    file = written(store, batch([(step, tensor, 0) for step in range(100) for tensor in range(300)]))
    assert len(file.read(tensor_ids=[150], fields=("l2",))) == 100
    assert 0 < sum(read) < 0.25 * sum(entry.size for entry in store.list())


def test_rows_that_were_written_twice_and_rows_of_findings(store: LocalStore) -> None:
    given = batch([(1, 1, 0), (1, 1, 1), (1, 1, 0), (0, 1, 0)])
    found = written(store, given).read(histograms=True)
    assert list(zip(found.global_step.tolist(), found.origin.tolist(), strict=True)) == [(0, 0), (1, 1), (1, 0)]
    assert rows_of(found) == rows_of(given)  # of which the last counts too
    with pytest.raises(InvalidValueError, match="at least one row"):
        encode_block(batch([]))


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, 5e-324])
def test_any_number_keeps_its_bits(store: LocalStore, special: float) -> None:
    given = batch(GRID[:6])
    given.values[:, 5:] = np.random.default_rng(0).choice([special, 1.5], size=(6, 6))
    assert rows_of(written(store, given).read(histograms=True)) == rows_of(given)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rows_and_histograms(store: LocalStore, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 1)), min_size=1))
    given = batch(rows, data.draw(st.integers(0, 99)))
    bins = [
        data.draw(st.dictionaries(st.integers(2, 4197).map(lambda key: key if key % 3 else -key),
                                  st.integers(1, 1 << 40), max_size=5))
        for _ in rows
    ]  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in bins])]).astype(np.int64)
    items = [item for each in bins for item in sorted(each.items())]
    given.histograms = Histograms(
        np.array([sum(each.values()) for each in bins], np.uint64), offsets,
        np.array([key for key, _ in items], np.int16), np.array([count for _, count in items], np.uint64),
    )  # fmt: skip
    assert rows_of(written(store, given).read(histograms=True)) == rows_of(sorted_rows(given))


def test_wide_histograms_are_split_into_matrices_of_bounded_size(store: LocalStore) -> None:
    given = batch(GRID)
    file = written(store, given, most_cells=256, most_group_cells=1024)
    (entry,) = store.list()
    table = pq.ParquetFile(io.BytesIO(store.read(entry.path)))
    assert table.num_row_groups > 1
    for group in range(table.num_row_groups):
        columns = table.read_row_group(group, ["histogram_steps", "histogram_keys"]).to_pydict()
        cells = [n * len(k) // 2 for n, k in zip(*columns.values(), strict=True)]
        assert sum(cells) <= 1024
        assert all(size <= 64 or steps == 1 for size, steps in zip(cells, columns["histogram_steps"], strict=True))
    assert rows_of(file.read(histograms=True)) == rows_of(given)


# Damaged and hostile files


def test_a_file_that_is_not_there_or_something_else(store: LocalStore) -> None:
    with pytest.raises(MissingFileError, match=r"none\.parquet"):
        ParquetStatistics(store, "none.parquet", size=100)
    for content in (b"", b"PAR1", b"PAR1" * 5, b"x" * 100, b"PAR1" + b"\xff" * 8 + b"PAR1"):
        store.write("other.parquet", content, replace=True)
        with pytest.raises(DamagedDataError, match=r"other\.parquet"):
            ParquetStatistics(store, "other.parquet", size=len(content))


def test_a_store_that_is_unreachable_is_no_damage(store: LocalStore) -> None:
    written(store, batch(GRID))
    (entry,) = store.list()
    faulty = FaultyStore(store)
    faulty.unreachable = True
    with pytest.raises(StoreError, match="unreachable"):
        ParquetStatistics(faulty, entry.path, size=entry.size)


def test_other_parquet_files_are_refused(store: LocalStore) -> None:
    data = encode_block(sorted_rows(batch(GRID)))
    table = pq.read_table(io.BytesIO(data))
    for other in (
        table.drop_columns(["m2"]),
        table.set_column(table.schema.get_field_index("m2"), "m2", pa.array(["x"] * 120)),
        table.set_column(table.schema.get_field_index("m2"), "m2", pa.array([[1.0]] * 120)),
        pa.table({"a": [1]}),
    ):
        sink = io.BytesIO()
        pq.write_table(other, sink)
        store.write("other.parquet", sink.getvalue(), replace=True)
        with pytest.raises(DamagedDataError, match=r"other\.parquet"):
            ParquetStatistics(store, "other.parquet", size=len(sink.getvalue()))


def test_a_footer_with_a_wrong_checksum(store: LocalStore) -> None:
    data = encode_block(sorted_rows(batch(GRID)))
    store.write("x.parquet", data)
    with pytest.raises(DamagedDataError, match="wrong checksum"):
        ParquetStatistics(store, "x.parquet", size=len(data), footer_crc=end_crc(data) ^ 1)


def test_no_flipped_bit_gives_other_numbers(store: LocalStore) -> None:
    given = batch(GRID[:30])
    data = encode_block(sorted_rows(given))
    crc, expected = end_crc(data), rows_of(given)
    random = np.random.default_rng(0)
    for at in random.choice(len(data), 400, replace=False).tolist():
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(random.integers(8))
        store.write("x.parquet", bytes(flipped), replace=True)
        try:
            found = ParquetStatistics(store, "x.parquet", size=len(data), footer_crc=crc).read(histograms=True)
        except DamagedDataError:
            continue
        assert rows_of(found) == expected  # a bit that has no meaning, such as of a magic number


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_files_are_errors_within_bounded_memory(store: LocalStore, data: st.DataObject) -> None:
    """Without the footer's checksum, as if one writer had written the file and the frame that names it."""
    whole = encode_block(sorted_rows(batch(GRID[:30])))
    changed = bytearray(whole)
    length = end_bytes(whole, len(whole))
    for _ in range(data.draw(st.integers(1, 4))):
        footer = data.draw(st.booleans())
        at = data.draw(st.integers(len(whole) - length if footer else 0, len(whole) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    content = bytes(changed[: len(changed) - cut])
    store.write("x.parquet", content, replace=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        ParquetStatistics(store, "x.parquet", size=len(content)).read(histograms=True)
    except DamagedDataError as error:
        said = str(error)
    else:
        said = "x.parquet"
    assert "x.parquet" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_pages_that_claim_more_than_there_is() -> None:
    page = _page(uncompressed=100, compressed=4, values=7) + b"abcd"
    assert check_pages(page, values=7, max_bytes=100) == 100
    for values, most in ((6, 100), (8, 100), (7, 99)):
        with pytest.raises(DamagedDataError):
            check_pages(page, values=values, max_bytes=most)
    for broken in (
        page[:-1],
        page[:3],
        page + b"\x01",
        _page(uncompressed=-1, compressed=0, values=7),
        b"\x19\xff" * 9,
    ):
        with pytest.raises(DamagedDataError):
            check_pages(broken, values=7, max_bytes=1 << 30)
    assert check_pages(b"", values=0, max_bytes=0) == 0


@pytest.mark.parametrize(
    "matrix",
    [
        count_matrices.Matrix(2, b"\x05\x00", b"\x01\x02\x03"),
        count_matrices.Matrix(1 << 30, b"\x05\x00", b"\x02"),
        count_matrices.Matrix(1, b"\x05", b"\x02"),
        count_matrices.Matrix(1, b"", b""),
        count_matrices.Matrix(1, b"\x05\x00", b"\x01"),
        count_matrices.Matrix(1, b"\x05\x00", b"\x02" * 9),
        count_matrices.Matrix(1, b"\x05\x00\x05\x00", b"\x02\x02"),
        count_matrices.Matrix(1, b"\x00\x00", b"\x02"),
        count_matrices.Matrix(1, b"\x05\x00", b"\x04"),
        count_matrices.Matrix(3, b"\x05\x00", b"\x02\x00\x00"),
    ],
)
def test_matrices_that_cannot_be(matrix: count_matrices.Matrix) -> None:
    with pytest.raises(DamagedDataError):
        count_matrices.decode([(0, matrix)], np.array([1, 1], np.uint64))


def test_rows_that_are_not_sorted_are_damage(store: LocalStore) -> None:
    table = pq.read_table(io.BytesIO(encode_block(sorted_rows(batch(GRID)))), schema=file_schema.schema())
    with pq.ParquetWriter(
        tmp := io.BytesIO(), file_schema.schema(), store_schema=False, use_dictionary=False
    ) as writer:
        writer.write_table(table.take(list(range(120))[::-1]).cast(file_schema.schema()))
    content = add_index(tmp.getvalue())
    store.write("x.parquet", content)
    with pytest.raises(DamagedDataError, match="not sorted"):
        ParquetStatistics(store, "x.parquet", size=len(content)).read()


def _page(*, uncompressed: int, compressed: int, values: int) -> bytes:
    def folded(number: int) -> bytes:
        number = ((number << 1) ^ (number >> 31)) & 0xFFFFFFFF
        parts = []
        while number > 127:
            parts.append(number & 127 | 128)
            number >>= 7
        return bytes([*parts, number])

    return b"".join([
        b"\x15", folded(0), b"\x15", folded(uncompressed), b"\x15", folded(compressed),
        b"\x2c", b"\x15", folded(values), b"\x15", folded(0), b"\x00", b"\x00",
    ])  # fmt: skip
