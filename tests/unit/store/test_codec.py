"""Records go round through frames; nonsense is named, not believed."""

import math
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from watchglass import store
from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.records import (
    FACTS,
    NOTES,
    REDUCTIONS,
    SAMPLES,
    SCALARS,
    SIZES,
    STEPS,
    UNITS,
    Fact,
    Field,
    Finding,
    Mode,
    Observation,
    Role,
    RowKey,
    RowKind,
    RuleStatus,
    Severity,
    Status,
    StepEnd,
    TensorInfo,
)
from watchglass.stats import Histograms, histograms_of, of_array
from watchglass.store.encoding.rows import MAX_FLAGS, MAX_VALUES


def payload(frame):
    (found,) = store.scan(frame).frames
    return found.payload


def batch(n=5, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 11))
    values[:, :5] = rng.integers(0, 2**53, size=(n, 5))
    values[:1, 5:7] = np.nan
    values[-1:, 10] = np.inf
    return store.StatisticsBatch(
        np.arange(n, dtype="u8"), np.arange(n, dtype="u4"), np.ones(n, "u4"), values,
        np.zeros(n, "u1"), np.arange(n) % 2 == 0,
    )  # fmt: skip


def with_histograms(n=5, seed=0, elements=1000):
    """A batch of real rows and histograms; every third has none."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(scale=10.0 ** rng.integers(-6, 3), size=elements) for _ in range(n)]
    given = batch(n, seed)
    given.values = np.array([of_array(array) for array in arrays]).reshape(n, 11)
    histograms = Histograms.concatenate([histograms_of(arrays), Histograms.none(1)])
    given.histograms = histograms.take([n if row % 3 == 2 else row for row in range(n)])
    return given


def same(a, b):
    return all(
        getattr(a, name).dtype == getattr(b, name).dtype and np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("seen", "offsets", "keys", "counts")
    )


FINDING = Finding(
    "0123456789ab", "Rule", Severity.ERROR, 1, 2, 2, Mode.TRAIN, "worker_0", ("a",), math.nan, math.inf, "m",
    ("c",), ("t",), 0, 3, {"x": [1]},
)  # fmt: skip


def decode_facts(payload):
    return store.facts_of(store.decode_rows(FACTS, payload))


@pytest.mark.parametrize(
    ("encode", "decode", "value"),
    [
        (store.encode_catalog, store.decode_catalog, [TensorInfo(1, "fc1.weight", Role.WEIGHT, "fc1", shape=(2, 3))]),
        (store.encode_step_ends, store.decode_step_ends, [StepEnd(3, Mode.EVAL, 1, -1, 5, 2**63, 4)]),
        (store.encode_step_ends, store.decode_step_ends, [StepEnd(3, Mode.TRAIN, 1, 1, 5, 6, 4, model=65_535)]),
        (store.encode_catalog, store.decode_catalog, [TensorInfo(1, "model_2/loss", Role.LOSS, model=1)]),
        (store.encode_facts, decode_facts, [Fact("loss_scale", 3, "GradScaler", {"scale": 2.0, "é": [None]})]),
        (store.encode_lifecycle, store.decode_lifecycle, {"event": "left", "worker": "worker_0", "counters": {}}),
        (store.encode_header, store.decode_header, {"format": [1, 0]}),
        (store.encode_record, store.decode_status, RuleStatus("R", Status.STARVED, "why")),
        (store.encode_record, store.decode_observation, Observation("worker_lost", 0, (1, 0, 1), {"a": 1})),
    ],
)
def test_records_go_round(encode, decode, value):
    assert decode(payload(encode(value))) == value


def test_a_finding_keeps_nan_and_infinity():
    found = store.decode_finding(payload(store.encode_record(FINDING)))
    assert math.isnan(found.value)
    assert found.limit == math.inf
    assert found.to_json() == FINDING.to_json()


def test_scalars_go_round_bit_by_bit():
    rows = np.array([(1, 2, 0.5, math.nan), (2**64 - 1, 3, 1.0, -0.0)], dtype=store.dtype_of(SCALARS))
    assert store.decode_rows(SCALARS, payload(store.encode_rows(SCALARS, rows))).tobytes() == rows.tobytes()


def test_statistics_go_round_bit_by_bit():
    given = batch()
    found = store.decode_statistics(payload(store.encode_statistics(given)))
    for field in ("global_step", "tensor_id", "calls", "values", "origin", "sampled"):
        assert getattr(found, field).tobytes() == getattr(given, field).tobytes()
        assert getattr(found, field).dtype == getattr(given, field).dtype


def test_statistics_take_at_most_120_bytes_a_row():
    given = with_histograms(198, elements=16384)
    assert len(given.histograms.keys) > 30 * 198
    assert len(store.encode_statistics(batch(300))) / 300 < 110
    assert len(store.encode_statistics(given)) / 198 < 120


@pytest.mark.parametrize("n", [0, 1, 2, 3, 50])
def test_histograms_go_round_bit_by_bit(n):
    given = with_histograms(n)
    frame = payload(store.encode_statistics(given))
    found = store.decode_statistics(frame)
    assert same(found.histograms, given.histograms)
    assert same(store.decode_histograms(frame), given.histograms)
    assert store.has_histograms(frame)
    assert np.array_equal(found.values, given.values, equal_nan=True)
    assert store.decode_statistics(frame, histograms=False).histograms is None


def test_histograms_of_any_key_and_count_go_round():
    keys = np.array([-4197, -4196, -2, 2, 300, 4197, 7], "i2")
    counts = np.array([1, 255, 256, 2**16, 2**53, 1, 2**32], "u8")
    given = batch(4)
    given.histograms = Histograms(np.array([2**54, 0, 2**40, 2], "u8"), np.array([0, 6, 6, 7, 7]), keys, counts)
    assert same(store.decode_statistics(payload(store.encode_statistics(given))).histograms, given.histograms)


def test_batches_without_histograms_have_none():
    frame = payload(store.encode_statistics(batch()))
    assert store.decode_statistics(frame).histograms is None
    assert store.decode_histograms(frame) is None
    assert not store.has_histograms(frame)


def test_histograms_that_do_not_belong_to_the_rows_are_refused():
    given = batch()
    given.histograms = Histograms.none(4)
    with pytest.raises(InvalidValueError, match="as many histograms"):
        store.encode_statistics(given)


def test_rows_can_be_taken_with_their_histograms():
    given = with_histograms(5)
    taken = given.take(np.array([3, 0]))
    assert taken.tensor_id.tolist() == [3, 0]
    assert same(taken.histograms, given.histograms.take([3, 0]))
    assert batch().take(np.arange(5) > 2).histograms is None


def rewritten(frame, **columns):
    """The payload of a frame with some columns replaced (None removes one), as a stream of pyarrow's."""
    import pyarrow as pa

    table = pa.ipc.open_stream(payload(frame)).read_all().to_pydict()
    known = pa.ipc.open_stream(payload(frame)).schema
    arrays = {name: pa.array(table[name], known.field(name).type) for name in known.names} | columns
    sink = pa.BufferOutputStream()
    made = pa.RecordBatch.from_pydict({name: column for name, column in arrays.items() if column is not None})
    with pa.ipc.new_stream(sink, made.schema) as stream:
        stream.write_batch(made)
    return sink.getvalue().to_pybytes()


def bins(*rows, first=(2, 0), seen=(9, 0)):
    import pyarrow as pa

    return {
        "histogram_bins": pa.array([*rows, []]), "histogram_first": pa.array(first, "int16"),
        "histogram_seen": pa.array(seen, "uint64"),
    }  # fmt: skip


def planes(*pairs, kind="uint8"):
    """One row of bins from (gap, count)."""
    import pyarrow as pa

    struct = pa.struct([("gap", kind), ("count_0", kind)])
    rows = [[{"gap": gap, "count_0": count} for gap, count in pairs], []]
    return pa.array(rows, pa.list_(struct))


def test_a_sound_rewritten_batch_is_read():
    columns = {**bins([]), "histogram_bins": planes((0, 4), (1, 5))}
    found = store.decode_statistics(rewritten(store.encode_statistics(batch(2)), **columns)).histograms
    assert found.keys.tolist() == [2, 3]
    assert found.counts.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("first", "seen", "given"),
    [
        (2, 9, ((1, 4), (1, 5))), (2, 9, ((0, 4), (0, 5))), (2, 9, ((0, 4), (1, 0))), (2, 8, ((0, 4), (1, 5))),
        (4197, 9, ((0, 4), (1, 5))), (-1, 9, ((0, 4), (1, 5))), (1, 9, ((0, 4),)), (0, 9, ((0, 4),)),
        (-4198, 9, ((0, 4),)),
    ],
)  # fmt: skip
def test_impossible_bins_are_damaged_data(first, seen, given):
    columns = {**bins([], first=(first, 0), seen=(seen, 0)), "histogram_bins": planes(*given)}
    with pytest.raises(DamagedDataError):
        store.decode_statistics(rewritten(store.encode_statistics(batch(2)), **columns))


def test_columns_of_histograms_that_are_none_are_damaged_data():
    import pyarrow as pa

    frame = store.encode_statistics(batch(2))
    sound = {**bins([]), "histogram_bins": planes((0, 4), (1, 5))}
    struct = pa.struct([("gap", "uint8"), ("count_0", "uint8")])
    for name, column in [
        ("histogram_bins", pa.array([1, 2])),
        ("histogram_bins", pa.array([[1], []])),
        ("histogram_bins", pa.array([[], []], pa.list_(pa.struct([("gap", "uint8")])))),
        ("histogram_bins", planes((0, 4), (1, 5), kind="uint16")),
        ("histogram_bins", pa.array([None, []], pa.list_(struct))),
        ("histogram_bins", pa.array([[None], []], pa.list_(struct))),
        ("histogram_bins", pa.array([[{"gap": None, "count_0": 1}], []], pa.list_(struct))),
        ("histogram_bins", None),
        ("histogram_first", None),
        ("histogram_first", pa.array([70_000, 0])),
        ("histogram_seen", pa.array([-1, 0])),
        ("histogram_seen", pa.array([9.0, 0.0])),
        ("tensor_id", pa.array([2**40, 0])),
        ("zero", pa.array([-1, 0])),
    ]:
        with pytest.raises(DamagedDataError):
            store.decode_statistics(rewritten(frame, **{**sound, name: column}))


def test_more_bins_than_are_read_are_refused_on_both_sides():
    import pyarrow as pa

    most = 1 << 23
    given = with_histograms(3)
    ones = pa.array(np.ones(most + 1, np.uint8))
    bins = pa.StructArray.from_arrays([ones, ones], ["gap", "count_0"])
    many = pa.ListArray.from_arrays(pa.array([0, 0, 0, most + 1], pa.int32()), bins)
    with pytest.raises(DamagedDataError, match=f"at most {most} are read"):
        store.decode_statistics(rewritten(store.encode_statistics(given), histogram_bins=many))
    keys, counts = np.ones(most + 1, np.int16), np.ones(most + 1, np.uint64)
    given.histograms = Histograms(np.ones(3, np.uint64), np.array([0, 0, 0, most + 1]), keys, counts)
    with pytest.raises(InvalidValueError, match="fewer rows"):
        store.encode_statistics(given)


def test_reductions_go_round_bit_by_bit():
    rows = np.array([(1, 2, 1, math.nan), (2**64 - 1, 3, 99, -0.0)], store.dtype_of(REDUCTIONS))
    frame = store.encode_rows(REDUCTIONS, rows)
    assert store.scan(frame).frames[0].kind == store.FrameKind.REDUCTIONS
    assert store.decode_rows(REDUCTIONS, payload(frame)).tobytes() == rows.tobytes()


def test_an_unknown_column_of_statistics_is_ignored():
    import pyarrow as pa

    table = pa.ipc.open_stream(payload(store.encode_statistics(batch()))).read_all()
    sink = pa.BufferOutputStream()
    more = table.append_column("sketch", pa.array([[1], [], [2, 3], None, [4]]))
    with pa.ipc.new_stream(sink, more.schema) as stream:
        stream.write_table(more)
    assert len(store.decode_statistics(sink.getvalue().to_pybytes())) == 5


def test_a_count_that_is_none_is_refused():
    rows = batch()
    rows.values[0, 0] = -1
    with pytest.raises(InvalidValueError, match="counts"):
        store.encode_statistics(rows)


def test_bitmaps_go_round():
    flags = [[True, False, True], [], [True] * 8 + [False]]
    rows = store.table_of(UNITS, [(n, 4, 1, np.array(each, bool)) for n, each in enumerate(flags)])
    found = store.decode_rows(UNITS, payload(store.encode_rows(UNITS, rows)))
    assert [row[:3] for row in found.tolist()] == [(0, 4, 1), (1, 4, 1), (2, 4, 1)]
    assert [each.tolist() for each in found["flags"]] == flags


KIND = RowKind(
    "loads", 99,
    (Field("worker", "text"), Field("cores", "f32", array=True), Field("busy", "bool"), Field("pid", "u16")),
    RowKey.TIME,
)  # fmt: skip


def test_a_kind_with_texts_and_arrays_goes_round():
    rows = store.table_of(KIND, [(5, "ü", [1.5, 2.5], True, 7), (2**63, "", [], False, 0)])
    frame = store.encode_rows(KIND, rows)
    assert store.scan(frame).frames[0].kind == 99
    found = store.decode_rows(KIND, payload(frame))
    assert found[["time_ns", "worker", "busy", "pid"]].tolist() == [(5, "ü", True, 7), (2**63, "", False, 0)]
    assert [each.tolist() for each in found["cores"]] == [[1.5, 2.5], []]
    assert len(store.decode_rows(KIND, payload(store.encode_rows(KIND, rows[:0])))) == 0


@pytest.mark.parametrize(
    "rows", [[[1.0, -2.0, math.nan]] * 3, [[1.0], [math.inf, -0.0], []], [[]] * 2, [np.arange(9.0) / 7] * 5]
)
def test_numbers_of_arrays_go_round_bit_by_bit(rows):
    table = store.table_of(KIND, [(n, "", np.array(each, np.float32), True, 7) for n, each in enumerate(rows)])
    found = store.decode_rows(KIND, payload(store.encode_rows(KIND, table)))
    assert [each.tobytes() for each in found["cores"]] == [each.tobytes() for each in table["cores"]]


def test_numbers_of_arrays_are_bit_planes_place_by_place():
    table = store.table_of(
        KIND, [(n, "", np.array(each, np.float32), True, 7) for n, each in enumerate([[1, 2], [3, -4]])]
    )
    body = zlib.decompress(payload(store.encode_rows(KIND, table))[8:])
    planes = body[2 * 8 + 2 * 4 + 2 * 4 :][:32]  # behind times, lengths of texts, and lengths of arrays
    bits = [
        [int(number) >> (31 - plane) & 1 for plane in range(32)]
        for number in np.array([1, 3, 2, -4], "<f4").view("<u4")
    ]
    assert list(planes) == [sum(bits[k][plane] << k for k in range(4)) for plane in range(32)]


@pytest.mark.parametrize("kind", [SCALARS, STEPS, UNITS, REDUCTIONS, KIND])
@pytest.mark.parametrize("bad", [b"\x07" * 13, b"\x07" * 7, b"\xff" * 100])
def test_rows_that_do_not_fill_their_bytes_are_damaged_data(kind, bad):
    with pytest.raises(DamagedDataError):
        store.decode_rows(kind, bad)


def test_columns_that_claim_more_than_they_have_are_damaged_data():
    frame = payload(store.encode_rows(UNITS, store.table_of(UNITS, [(1, 1, 1, np.ones(8, bool))])))
    for changed in (
        frame + b"x", frame[:-1], struct.pack("<I", 2**32 - 1) + frame[4:],
        frame[:4] + struct.pack("<I", 9) + frame[8:], frame[:4] + struct.pack("<I", 2**32 - 1) + frame[8:],
    ):  # fmt: skip
        with pytest.raises(DamagedDataError):
            store.decode_rows(UNITS, changed)


@pytest.mark.parametrize("kind", [UNITS, SAMPLES, NOTES])
def test_more_texts_and_arrays_than_are_read_are_refused_before_they_are_read(kind):
    each = sum(field.array or field.type == "text" for field in kind.fields)
    row_bytes = sum(4 if field.array or field.type == "text" else SIZES[field.type] for field in kind.fields)
    for rows, refused in ((MAX_VALUES // each, False), (MAX_VALUES // each + 1, True), ((64 << 20) // row_bytes, True)):
        body = bytes(rows * row_bytes)
        head = rows.to_bytes(4, "little") + len(body).to_bytes(4, "little")
        data = head + zlib.compress(body)
        if not refused:
            assert len(store.decode_rows(kind, data)) == rows
            continue
        tracemalloc.start()
        try:
            with pytest.raises(DamagedDataError, match=f"at most {MAX_VALUES} texts and arrays"):
                store.decode_rows(kind, data)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


def test_more_booleans_than_are_read_are_refused():
    count = MAX_FLAGS + 1
    body = bytes(8 + 4 + 1) + count.to_bytes(4, "little") + bytes((count + 7) // 8)
    data = (1).to_bytes(4, "little") + len(body).to_bytes(4, "little") + zlib.compress(body)
    with pytest.raises(DamagedDataError, match=f"at most {MAX_FLAGS} are read"):
        store.decode_rows(UNITS, data)


def test_more_rows_than_are_read_are_no_frame(monkeypatch):
    monkeypatch.setattr("watchglass.store.encoding.rows.MAX_VALUES", 3)
    rows = store.table_of(UNITS, [(step, 4, 1, np.ones(2, bool)) for step in range(4)])
    with pytest.raises(InvalidValueError, match="at most 3 texts and arrays but got 4; write the rows in several"):
        store.encode_rows(UNITS, rows)
    assert len(store.decode_rows(UNITS, payload(store.encode_rows(UNITS, rows[:3])))) == 3


def test_an_unknown_mode_is_damaged_data():
    frame = payload(store.encode_step_ends([StepEnd(0, Mode.GLOBAL, 0, 0, 0, 0)]))
    with pytest.raises(DamagedDataError, match="mode 4"):
        store.decode_step_ends(frame)
