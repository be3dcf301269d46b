"""Statistics and their histograms as bytes: everything goes round, nothing that is read breaks what readers rely on."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from watchglass.errors import DamagedDataError
from watchglass.stats import Histograms, edges, quantiles
from watchglass.store import StatisticsBatch, decode_statistics, encode_statistics
from watchglass.store.encoding import histogram_columns
from watchglass.store.encoding.frames import HEADER_BYTES

KEYS = st.integers(2, 4197) | st.integers(-4197, -2)
ROWS = st.lists(
    st.one_of(st.none(), st.dictionaries(KEYS, st.integers(1, 2**52), max_size=12)), max_size=6
)  # fmt: skip


def batch_of(rows):
    n = len(rows)
    filled = [sorted((row or {}).items()) for row in rows]
    offsets = np.cumsum([0, *map(len, filled)])
    pairs = np.array([pair for row in filled for pair in row], np.int64).reshape(-1, 2)
    seen = np.array([0 if row is None else 1 + sum(row.values()) for row in rows], np.uint64)
    values = np.zeros((n, 11))
    values[:, 0] = seen
    histograms = Histograms(seen, offsets, pairs[:, 0].astype(np.int16), pairs[:, 1].astype(np.uint64))
    columns = (np.arange(n, dtype="u8"), np.arange(n, dtype="u4"), np.ones(n, "u4"), values)
    return StatisticsBatch(*columns, np.zeros(n, "u1"), np.zeros(n, bool), histograms)


def payload_of(batch):
    return encode_statistics(batch)[HEADER_BYTES:]


@given(rows=ROWS)
def test_any_histograms_go_round(rows):
    batch = batch_of(rows)
    found = decode_statistics(payload_of(batch)).histograms
    for name in ("seen", "offsets", "keys", "counts"):
        given, read = getattr(batch.histograms, name), getattr(found, name)
        assert given.dtype == read.dtype
        assert given.tolist() == read.tolist()


@pytest.fixture(scope="module")
def sound():
    rng = np.random.default_rng(0)
    rows = [{int(k): int(c) for k, c in zip(rng.integers(2000, 2100, 20), rng.integers(1, 300, 20), strict=True)}]
    return payload_of(batch_of(rows * 8))


@given(data=st.data())
def test_whatever_is_read_can_be_used(sound, data):
    changed = bytearray(sound)
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(sound) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        changed[at] = value
    try:
        batch = decode_statistics(bytes(changed[: data.draw(st.integers(0, len(sound)) | st.just(len(sound)))]))
    except DamagedDataError:
        return
    use(batch.histograms, batch)


def use(histograms, batch):
    if histograms is None:
        return
    assert len(histograms) == len(batch)
    low, high = edges(histograms.keys)
    assert (low < high).all()
    assert np.isfinite([low, high]).all()
    assert histograms.offsets[0] == 0
    assert histograms.offsets[-1] == len(histograms.keys) == len(histograms.counts)
    for row in range(len(histograms)):
        keys, counts = histograms.row(row)
        assert (np.diff(keys.astype(int)) > 0).all()
        assert counts.astype(float).sum() <= histograms.seen[row]
    with np.errstate(all="ignore"):
        quantiles(histograms, batch.values, [0.0, 0.5, 1.0])


PLANE = st.lists(st.integers(0, 255), max_size=8)


@given(
    lists=st.lists(st.lists(st.tuples(*[st.integers(0, 255)] * 4), max_size=5), min_size=1, max_size=4), data=st.data()
)
def test_columns_of_any_bytes_give_histograms_that_hold_or_none(lists, data):
    """Past Arrow's own checks: the columns themselves, with any numbers in them."""
    import pyarrow as pa

    names = [
        "gap",
        data.draw(st.sampled_from(["gap_1", "other"])),
        "count_0",
        data.draw(st.sampled_from(["count_1", "x"])),
    ]
    struct = pa.struct([(name, "uint8") for name in names])
    bins = pa.array([[dict(zip(names, bin_, strict=True)) for bin_ in row] for row in lists], pa.list_(struct))
    n = len(lists)
    seen = np.array(data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=n, max_size=n)), np.uint64)
    first = np.array(data.draw(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=n, max_size=n)), np.int16)
    try:
        found = histogram_columns.decode(seen, first, [bins])
    except DamagedDataError:
        return
    batch = batch_of([None] * n)
    use(found, batch)


@example(offsets=[0, 2, 4])
@example(offsets=[0, 4, 2, 4])
@given(offsets=st.lists(st.integers(-3, 12), min_size=1, max_size=5))
def test_offsets_are_never_followed_unchecked(offsets):
    import pyarrow as pa

    values = pa.StructArray.from_arrays(
        [pa.array([0, 1, 0, 1], "uint8"), pa.array([1, 1, 1, 1], "uint8")], names=["gap", "count_0"]
    )
    n = len(offsets) - 1
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    seen, first = np.full(n, 9, np.uint64), np.full(n, 2, np.int16)
    try:
        bins = pa.Array.from_buffers(pa.list_(values.type), n, buffers, children=[values])
        found = histogram_columns.decode(seen, first, [bins])
    except (DamagedDataError, pa.ArrowInvalid):
        return
    assert (offsets[0], offsets[-1]) == (0, 4)
    assert np.diff(found.offsets).tolist() == np.diff(offsets).tolist()
