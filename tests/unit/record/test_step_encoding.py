"""Finished steps become frames: rows of one tensor merged, steady rows among whole steps, nothing lost by one fault."""

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, StoreError
from watchglass.record import Captured, CapturedRecords, OpenStep, SteadyRow
from watchglass.record.step_encoding import encode_steps, queued_bytes
from watchglass.records import (
    RAW,
    REDUCTIONS,
    SCALARS,
    STATISTIC_FIELDS,
    UNITS,
    Mode,
    Reduction,
    Role,
    TensorInfo,
    UnitKind,
    of_steps,
)
from watchglass.stats import Histograms, exact_reduction, histograms_of, merge, of_array
from watchglass.store import ABSENT, FrameKind, RawTensor, decode_rows, decode_statistics, scan
from watchglass.tables import WorkerTables


class Later:
    """A number or array that is still on its way."""

    def __init__(self, value):
        self._value = value

    def resolve(self):
        return self._value


def whole(number, mode=Mode.TRAIN, **records):
    end = 1000 * number + 7
    made = OpenStep(number, mode, number, number, 1000 * number, end_ns=end)
    made.records.rows |= {kind: records[kind.name] for kind in of_steps() if kind.name in records}
    return made


def captured(*pairs, sampled=False, histograms=True):
    ids, arrays = zip(*pairs, strict=True)
    values = np.stack([of_array(array) for array in arrays])
    return Captured(list(ids), values, sampled, histograms_of(arrays) if histograms else None)


def read(frames, ids=range(8)):
    """Tables that have read the frames and know every tensor id."""
    tables = WorkerTables()
    for frame in scan(b"".join(frames)).frames:
        tables.ingest(frame)
    for tensor_id in ids:
        tables.catalog.add(TensorInfo(tensor_id, f"t{tensor_id}", Role.CUSTOM))
    assert tables.problems == []
    return tables


def no_tensors(tensors):
    raise AssertionError(f"nothing raw was recorded but {tensors} came")


def same(a, b):
    names = ("seen", "offsets", "keys", "counts")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def kinds(frames):
    return [frame.kind for frame in scan(b"".join(frames)).frames]


@pytest.mark.parametrize("rows", [[(0.1,) * 7], [(0.1,) * 9], [(0.1,) * 8, (0.1,) * 7]])
def test_rows_of_too_few_or_too_many_values_are_refused_with_their_kind_and_its_fields(rows):
    with pytest.raises(
        InvalidValueError, match=r"rows of phases must have 9 values \(global_step, data_s, .*\) but got"
    ):
        encode_steps([whole(0, phases=rows)], [], no_tensors)


def test_steady_rows_stand_among_whole_steps_in_order():
    rows = [SteadyRow(n, n, 1000 * n, 1000 * n + 5, 1.0 / n, 0.1 * n, 64.0) for n in (1, 2, 4)]
    rows[1] = rows[1]._replace(loss=Later(np.float32(0.5)))
    steps = [whole(0, scalars=[(5, 32.0, 2.0)]), rows[0], rows[1], whole(3, scalars=[(5, 32.0, 3.0)]), rows[2]]
    frames = encode_steps(steps, [], no_tensors, steady_ids=(5, 6))
    assert kinds(frames) == [FrameKind.SCALARS, FrameKind.STEP_ENDS]
    scalars = decode_rows(SCALARS, scan(frames[0]).frames[0].payload)
    assert scalars["global_step"].tolist() == [0, 1, 1, 2, 2, 3, 4, 4]
    tables = read(frames)
    assert list(tables.steps) == [0, 1, 2, 3, 4]
    for number, end in tables.steps.items():
        assert (end.mode, end.mode_step, end.train_step, end.start_ns) == (Mode.TRAIN, number, number, 1000 * number)
        assert (end.end_ns, end.captures) == (1000 * number + (7 if number in (0, 3) else 5), 0)
    steps, losses, weights = tables.scalar_history(5)
    assert steps.tolist() == [0, 1, 2, 3, 4]
    assert losses.tolist() == [2.0, 1.0, 0.5, 3.0, 0.25]
    assert weights.tolist() == [32.0, 64.0, 64.0, 32.0, 64.0]
    assert tables.scalar_history(6)[1].tolist() == [0.1, 0.2, 0.4]
    assert [row.tensor.tensor_id for row in tables.rows(SCALARS, 4)] == [5, 6]


def test_steady_rows_alone_and_none_at_all():
    rows = [SteadyRow(n, n, n, n - 1, float("nan"), 0.1, 1.0) for n in range(3)]
    tables = read(encode_steps(rows, [], no_tensors, steady_ids=(1, 2)))
    assert [end.end_ns - end.start_ns for end in tables.steps.values()] == [0, 0, 0]
    assert np.isnan(tables.scalar_history(1)[1]).all()
    assert encode_steps([], [], no_tensors) == []


def test_steady_rows_without_a_learning_rate_have_none():
    rates = (0.1, ABSENT, float("nan"))
    rows = [SteadyRow(n, n, n, n, 1.0, rate, 1.0) for n, rate in enumerate(rates)]
    tables = read(encode_steps(rows, [], no_tensors, steady_ids=(1, 2)))
    assert tables.scalar_history(1)[0].tolist() == [0, 1, 2]
    steps, found, _ = tables.scalar_history(2)
    assert steps.tolist() == [0, 2]
    assert found[0] == 0.1
    assert np.isnan(found[1])
    assert [len(row.opened(CapturedRecords(), (1, 2)).records.rows[SCALARS]) for row in rows] == [2, 1, 2]


def test_calls_of_one_tensor_become_one_row_with_one_histogram():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=50) for _ in range(5)]
    other = np.array([1.0, 0.0, np.inf])
    records = [
        captured((3, arrays[0]), (2, other)), captured((3, arrays[1]), (3, arrays[2]), sampled=True),
        captured((3, arrays[3])), captured((3, arrays[4])),
    ]  # fmt: skip
    steps = [whole(0, statistics=[captured((3, other))]), whole(9, statistics=records)]
    tables = read(encode_steps(steps, [], no_tensors))
    rows = tables.statistics.at(9)
    assert rows.ids.tolist() == [2, 3]
    assert rows.calls.tolist() == [1, 5]
    assert rows.sampled.tolist() == [False, True]
    expected = of_array(arrays[0])
    for array in arrays[1:]:
        expected = merge(expected, of_array(array))
    assert rows.values[1].tobytes() == expected.tobytes()
    assert same(rows.histograms.get(), histograms_of([other, np.concatenate(arrays)]))
    assert tables.statistics.at(0).ids.tolist() == [3]
    assert [tables.steps[step].captures for step in (0, 9)] == [1, 2]


def test_readings_may_come_later_and_without_histograms():
    array = np.arange(1.0, 5.0)
    late = Captured([1], Later(of_array(array)), False, Later(histograms_of([array])))
    tables = read(encode_steps([whole(0, statistics=[late, captured((2, array), histograms=False)])], [], no_tensors))
    rows = tables.statistics.at(0)
    assert rows.ids.tolist() == [1, 2]
    assert rows.histograms.get().seen.tolist() == [4, 0]
    plain = encode_steps([whole(0, statistics=[captured((2, array), histograms=False)])], [], no_tensors)
    assert read(plain).statistics.at(0).histograms is None


def test_reductions_of_several_calls():
    first, second = np.array([1.0, -5.0, 3.0]), np.array([0.5, 8.0])
    reductions = [
        (1, which, exact_reduction(array, which)) for array in (first, second) for which in Reduction
    ]  # fmt: skip
    nothing = [(2, Reduction.PROD, float("nan")), (2, Reduction.PROD, Later(4.0)), (2, Reduction.PROD, float("nan"))]
    step = whole(0, reductions=reductions + nothing)
    tables = read(encode_steps([step], [], no_tensors))
    found = {(row.tensor.tensor_id, row.reduction): row.value for row in tables.rows(REDUCTIONS, 0)}
    both = np.concatenate([first, second])
    assert found[1, Reduction.PROD] == exact_reduction(both, Reduction.PROD)
    assert found[1, Reduction.ABS_MIN] == exact_reduction(both, Reduction.ABS_MIN)
    assert found[1, Reduction.MEDIAN] == exact_reduction(first, Reduction.MEDIAN)
    assert found[1, Reduction.ABS_MEDIAN] == exact_reduction(first, Reduction.ABS_MEDIAN)
    assert found[2, Reduction.PROD] == 4.0


def test_bitmaps_need_no_statistics_beside_them():
    units = [(1, UnitKind.INACTIVE, np.array([True, True, False])), (1, UnitKind.INACTIVE, [True, False, False])]
    ((tensor, _, flags),) = read(encode_steps([whole(0, units=units)], [], no_tensors)).rows(UNITS, 0)
    assert (tensor.tensor_id, flags.tolist()) == (1, [True, False, False])


def test_a_large_flush_is_written_in_several_frames():
    count = (2 << 16) + 4
    rows = Captured(list(range(count)), np.zeros((count, len(STATISTIC_FIELDS))))
    frames = scan(b"".join(encode_steps([whole(0, statistics=[rows])], [], no_tensors))).frames
    assert [len(decode_statistics(frame.payload)) for frame in frames[:-1]] == [count // 4] * 4
    # The same for bins: of 1,200 rows with all 4,000 keys.
    bins, rows = 4000, 1200
    offsets, keys = bins * np.arange(rows + 1), np.arange(2, bins + 2)
    given = Histograms(
        np.full(rows, bins, np.uint64), offsets, np.tile(keys, rows).astype(np.int16), np.ones(rows * bins, np.uint64)
    )
    wide = Captured(list(range(rows)), np.zeros((rows, len(STATISTIC_FIELDS))), False, given)
    encoded = encode_steps([whole(0, statistics=[wide])], [], no_tensors)
    decoded = [decode_statistics(frame.payload) for frame in scan(b"".join(encoded)).frames[:-1]]
    assert [len(batch.histograms.keys) for batch in decoded] == [rows * bins // 2] * 2
    tables = read(encoded, range(rows))
    assert tables.statistics.at(0).ids.tolist() == list(range(rows))
    assert same(tables.statistics.at(0).histograms.get(), given)


def test_raw_tensors_go_to_the_store_as_they_are():
    array, bits = np.arange(3.0), np.arange(3, dtype="u2")
    given = []

    def write(tensors):
        given.extend(tensors)
        return [{"global_step": step, "tensor_id": raw.tensor_id, "file": "f", "key": "k"} for step, raw in tensors]

    step = whole(4, raw=[(1, array), RawTensor(2, Later(bits), "bfloat16")])
    tables = read(encode_steps([step], [], write))
    assert given[0][1].array is array
    assert given[1] == (4, RawTensor(2, bits, "bfloat16"))
    assert [row.tensor.tensor_id for row in tables.rows(RAW, 4)] == [1, 2]


def test_what_cannot_be_stored_is_said_and_the_rest_is_kept():
    def full(tensors):
        raise StoreError("the disk is full")

    step = whole(4, scalars=[(1, 1.0, 2.0)], raw=[(1, np.arange(3.0)), (2, np.zeros(2, "O")), (3, np.arange(2))])
    tables = read(encode_steps([step], [], full))
    assert [row[1:] for row in tables.rows(SCALARS, 4)] == [(1.0, 2.0)]
    assert tables.rows(RAW, 4) == []
    facts = tables.facts(4)
    assert [(fact.kind, fact.data["what"]["raw"], fact.data["reason"]) for fact in facts] == [
        ("dropped", 1, "dtype object"), ("dropped", 2, "the disk is full"),
    ]  # fmt: skip


def test_what_waits_is_counted_with_its_histograms_and_raw_tensors():
    array = np.zeros(1000)
    bare = sum(queued_bytes(whole(0, statistics=[captured((1, array), histograms=False)]).records))
    full = sum(queued_bytes(whole(0, statistics=[captured((1, array))]).records))
    raw = sum(queued_bytes(whole(0, raw=[RawTensor(1, array), (2, array)]).records))
    assert sum(queued_bytes(CapturedRecords())) < bare < full
    assert raw >= 16_000


@pytest.mark.parametrize("calls", [2, 3, 7, 8])
def test_histograms_of_any_number_of_calls_merge_exactly(calls):
    rng = np.random.default_rng(calls)
    arrays = [rng.normal(size=rng.integers(0, 20)) for _ in range(calls)]
    step = whole(0, statistics=[captured((1, array)) for array in arrays])
    found = read(encode_steps([step], [], no_tensors)).statistics.at(0).histograms.get()
    assert same(found, histograms_of([np.concatenate(arrays)]))


def test_lists_that_no_reader_would_take_are_split():
    """Over a hundred thousand tensors may be named at once. Two of these rows fit a frame."""
    long = "x" * ((32 << 20) // 3)
    tensors = [TensorInfo(number, f"layer{number}.{long}", Role.WEIGHT) for number in range(3)]
    step = whole(0, facts=[("seen", "test", {"number": number, "long": long}) for number in range(5)])
    frames = encode_steps([step], tensors, no_tensors)
    assert all(len(scan(frame).frames) == 1 for frame in frames)
    tables = read(frames, ids=())
    assert [row.name for row in tables.catalog] == [row.name for row in tensors]
    assert [fact.data["number"] for fact in tables.facts(0)] == list(range(5))
    assert 0 in tables.steps
    assert len(frames) == 2 + 3 + 1


def test_a_name_and_a_fact_that_no_frame_can_hold_are_reported_and_the_others_stay():
    too_long = 32 << 20
    tensors = [
        TensorInfo(0, "a", Role.WEIGHT),
        TensorInfo(1, "b" * too_long, Role.WEIGHT),
        TensorInfo(2, "c", Role.WEIGHT),
    ]
    facts = [("seen", "test", {"x": "x" * size}) for size in (1, too_long, 2)]
    tables = read(encode_steps([whole(4, facts=facts)], tensors, no_tensors), ids=())
    assert [row.name for row in tables.catalog] == ["a", "c"]
    assert [fact.data["x"] for fact in tables.facts(4) if fact.kind == "seen"] == ["x", "xx"]
    assert [fact.data["what"]["facts"] for fact in tables.facts(4) if fact.kind == "dropped"] == [1]
    assert [fact.data["what"]["tensor_id"] for fact in tables.facts(-1) if fact.kind == "dropped"] == [1]
    assert 4 in tables.steps


def test_more_units_than_a_frame_holds_are_written_in_several(monkeypatch):
    monkeypatch.setattr("watchglass.store.encoding.rows.MAX_VALUES", 2)
    steps = [whole(step, units=[(1, UnitKind.INACTIVE, np.array([step % 2 == 0, True]))]) for step in range(5)]
    frames = encode_steps(steps, [], no_tensors)
    assert kinds(frames).count(FrameKind.UNITS) == 3, "of two, one and two"
    tables = read(frames)
    assert [tables.rows(UNITS, step)[0][2].tolist() for step in range(5)] == [
        [step % 2 == 0, True] for step in range(5)
    ]


def test_a_number_that_turns_out_to_be_none_costs_nothing_else_of_its_step():
    step = whole(3, scalars=[(0, 1.0, Later(None)), (1, 1.0, Later(0.5)), (2, 1.0, 2)])
    tables = read(encode_steps([step], [], no_tensors))
    assert [row[1:] for row in tables.rows(SCALARS, 3)] == [(1.0, 0.5), (1.0, 2.0)]
