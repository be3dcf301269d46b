"""Tables of one worker by step and as a whole."""

import json
import shutil
import threading

import numpy as np
import pytest

from calls import profiled
from watchglass.errors import CompactedError
from watchglass.records import (
    RAW,
    SCALARS,
    STATISTIC_FIELDS,
    UNITS,
    Fact,
    Mode,
    Origin,
    Reduction,
    Role,
    TensorInfo,
    UnitKind,
)
from watchglass.stats import column, of_array
from watchglass.store import (
    Frame,
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    compact,
    decode_columns,
    encode_frame,
)
from watchglass.store.encoding.frames import HEADER_BYTES
from watchglass.tables import WorkerTables
from watchglass.tables.payloads import Decoded, new_token
from watchglass.testing import Row, Step, build_run

pytestmark = pytest.mark.own_process


def tables_of(path, worker="worker_0"):
    tables = WorkerTables()
    for _, name, frame in RunReader(LocalStore(path)).poll():
        if name == worker:
            tables.ingest(frame)
    return tables


@pytest.fixture
def arrays():
    return [np.random.default_rng(n).normal(size=(4, 3)) for n in range(10)]


@pytest.fixture
def tables(tmp_path, arrays):
    steps = [
        {
            "scalars": {"loss": float(n)},
            "weight": 8.0,
            "statistics": {"fc1.weight": array, "gradient/fc1.weight": 2 * array} if n % 2 == 0 else {},
            "units": {"fc1.output": [n % 2, 1, 0]},
            "facts": {"step_skipped": {"n": n}} if n == 3 else {},
            "mode": Mode.EVAL if n >= 8 else Mode.TRAIN,
        }
        for n, array in enumerate(arrays)
    ]
    return tables_of(build_run(tmp_path / "run", steps, facts={"model": {"parameters": 12}}, steps_per_flush=3))


def test_steps_scalars_and_facts_are_found_by_step(tables):
    assert sorted(tables.steps) == list(range(10))
    assert tables.steps[9].mode is Mode.EVAL
    assert (tables.steps[9].mode_step, tables.steps[9].train_step) == (1, 7)
    assert tables.rows(SCALARS, 4) == [(tables.catalog.by_name("loss"), 8.0, 4.0)]
    assert tables.rows(SCALARS, 99) == []
    assert [fact.data for fact in tables.facts(3)] == [{"n": 3}]
    assert [fact.kind for fact in tables.facts()] == ["model", "step_skipped"]
    assert [event["event"] for event in tables.lifecycle] == ["joined", "left"]
    assert len(tables.headers) == 1


def test_statistics_are_found_by_step_in_columns(tables, arrays):
    rows = tables.statistics.at(4)
    names = [tables.catalog[int(i)].name for i in rows.ids]
    assert names == ["fc1.weight", "gradient/fc1.weight"]
    np.testing.assert_array_equal(rows.values[0], of_array(arrays[4]))
    assert (rows.ids.dtype, rows.values.shape, rows.calls.dtype, rows.sampled.dtype) == ("u4", (2, 11), "u4", "?")
    empty = tables.statistics.at(5)
    assert (len(empty.ids), empty.values.shape) == (0, (0, 11))


def test_bitmaps_come_as_flags(tables):
    ((tensor, kind, flags),) = tables.rows(UNITS, 1)
    assert tensor.name == "fc1.output"
    assert kind is UnitKind.INACTIVE
    assert flags.tolist() == [True, True, False]


def test_histories_are_in_the_order_of_steps(tables, arrays):
    steps, values, weights = tables.scalar_history(tables.catalog.by_name("loss").tensor_id)
    assert steps.tolist() == values.tolist() == list(range(10))
    assert set(weights.tolist()) == {8.0}
    steps, rows = tables.statistics.of_tensor(tables.catalog.by_name("fc1.weight").tensor_id)[:2]
    assert steps.tolist() == [0, 2, 4, 6, 8]
    np.testing.assert_allclose(column(rows, "mean"), [arrays[n].mean() for n in steps])
    assert tables.captured(tables.catalog.by_name("fc1.weight").tensor_id) == {0, 2, 4, 6, 8}


def test_rows_written_because_of_a_finding_are_left_out_unless_asked_for(tmp_path):
    row = Row({"max": 7.0}, origin=Origin.FINDING, sampled=True, calls=3)
    path = build_run(tmp_path / "run", [{"statistics": {"a.weight": row, "b.weight": np.ones(2)}}])
    tables = tables_of(path)
    assert len(tables.statistics.at(0).ids) == 1
    rows = tables.statistics.read(global_steps=(0, 1), planned_only=False)
    assert (rows.calls.tolist(), rows.sampled.tolist()) == ([3, 1], [True, False])
    assert len(tables.statistics.of_tensor(0)[0]) == 0
    assert len(tables.statistics.read(tensor_ids=[0], planned_only=False)) == 1


def test_a_flush_that_was_written_twice_counts_once(tmp_path):
    step = {
        "statistics": {"a.weight": np.ones(2), "b.weight": np.ones(3)}, "scalars": {"loss": 1.0},
        "units": {"a.output": [1, 0]}, "facts": {"step_skipped": {"n": 1}},
    }  # fmt: skip
    path = build_run(tmp_path / "run", [step], facts={"model": {"parameters": 12}})
    tables = WorkerTables()
    frames = [frame for _, _, frame in RunReader(LocalStore(path)).poll()]
    for frame in frames + frames:
        tables.ingest(frame)
    ids = [tables.catalog.by_name(name).tensor_id for name in ("a.weight", "b.weight")]
    assert tables.statistics.at(0).ids.tolist() == ids
    assert tables.statistics.of_tensor(ids[1])[0].tolist() == [0]
    loss = tables.catalog.by_name("loss").tensor_id
    assert [row.value for row in tables.rows(SCALARS, 0)] == tables.scalar_history(loss)[1].tolist() == [1.0]
    assert len(tables.rows(UNITS, 0)) == 1
    assert [fact.kind for fact in tables.facts()] == ["model", "step_skipped"]


def test_a_row_that_makes_no_sense_is_a_problem_and_its_neighbours_are_read():
    tables, sound = WorkerTables(), TensorInfo(1, "a", Role.WEIGHT)
    catalog = [sound.to_json(), {**sound.to_json(), "tensor_id": 2, "role": "of a later release"}]
    facts = [Fact("k", 0, "s").to_json(), 7, {"kind": 1}, Fact("k", 1, "s").to_json()]
    for kind, rows in ((FrameKind.CATALOG, catalog), (FrameKind.FACTS, facts)):
        tables.ingest(Frame(kind, 1, json.dumps(rows).encode(), 5, "segment"))
    assert list(tables.catalog) == [sound]
    assert [fact.global_step for fact in tables.facts()] == [0, 1]
    first, second = map(str, tables.problems)
    assert "segment at byte 5: a catalog row" in first
    assert "later release" in first
    assert "a row of facts" in second
    assert "and 1 more row)" in second


def test_forgetting_keeps_what_comes_after(tables):
    tables.forget(6)
    assert sorted(tables.steps) == [6, 7, 8, 9]
    assert tables.rows(SCALARS, 5) == []
    assert len(tables.rows(SCALARS, 6)) == 1
    assert len(tables.statistics.at(4).ids) == 0
    assert len(tables.statistics.at(6).ids) == 2
    assert tables.rows(UNITS, 2) == []
    assert [fact.kind for fact in tables.facts()] == ["model"]
    assert len(tables.catalog) == 4


def captures(count, names=("a.weight", "b.weight", "c.weight")):
    """Steps with statistics of tensors whose maximum says step and tensor; every fourth is of an evaluation."""
    return [
        Step(
            {"loss": float(n)},
            {name: np.array([-1.0, 100.0 * n + index]) for index, name in enumerate(names)},
            {"fc.output": [n % 2, 1]}, {"k": {"n": n}}, {"a.weight": np.ones(2)} if n % 2 else {},
            Mode.EVAL if n % 4 == 3 else Mode.TRAIN, reductions={"a.weight": {Reduction.MEDIAN: float(n)}},
        )
        for n in range(count)
    ]  # fmt: skip


def left_in(path, **how):
    """Tables of which the payloads of statistics stay in the store."""
    store = LocalStore(path)
    tables = WorkerTables(store, **how)
    for _, _, frame in RunReader(store, leave=(FrameKind.STATISTICS,)).poll():
        assert frame.kind != FrameKind.STATISTICS or (frame.payload == b"" and frame.left > 0)
        tables.ingest(frame)
    return tables


def ids(tables, *names):
    return [tables.catalog.by_name(name).tensor_id for name in names]


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_some_tensors_and_steps_in_some_columns(tmp_path, compacted):
    path = build_run(tmp_path / "run", captures(20), steps_per_flush=3, facts={"model": {}})
    if compacted:
        assert compact(LocalStore(path)).rows == 60
    tables = left_in(path)
    a, c = ids(tables, "a.weight", "c.weight")
    rows = tables.statistics.read(tensor_ids=[c, a], global_steps=(5, 9), fields=("max", "count"), histograms=True)
    assert rows.global_step.tolist() == [5, 5, 6, 6, 7, 7, 8, 8]
    assert rows.tensor_id.tolist() == [a, c] * 4
    assert rows.values.tolist() == [[100.0 * s + t, 2.0] for s in range(5, 9) for t in (0, 2)]
    assert rows.histograms.seen.tolist() == [2] * 8
    everything = tables.statistics.read()
    assert len(everything) == 60
    assert everything.histograms is None
    assert np.isfinite(everything.values).all()
    assert len(tables.statistics.read(tensor_ids=[])) == len(tables.statistics.read(global_steps=(50, 60))) == 0
    for step in range(20):
        by_step = tables.statistics.at(step)
        np.testing.assert_array_equal(by_step.values, everything.values[everything.global_step == step])
        some = tables.statistics.at(step, ("l2", "min"))
        np.testing.assert_array_equal(
            some.values, by_step.values[:, [STATISTIC_FIELDS.index(n) for n in ("l2", "min")]]
        )
        assert some.histograms.get().seen.tolist() == [2] * 3
        assert by_step.histograms.get().seen.tolist() == [2] * 3
    steps, values = tables.statistics.of_tensor(a, fields=("max",))[:2]
    assert steps.tolist() == list(range(20))
    assert values.tolist() == [[100.0 * n] for n in range(20)]
    assert tables.captured(c) == set(range(20))
    assert set(ids(tables, "a.weight", "b.weight", "c.weight")) <= tables.captured_ids(np.array([3, 4], np.uint64))
    assert tables.problems == []


@pytest.mark.parametrize("compacted", [False, True])
def test_only_what_belongs_to_a_range_of_train_steps_is_kept(tmp_path, compacted, monkeypatch):
    path = build_run(tmp_path / "run", captures(20), steps_per_flush=3, facts={"model": {}})
    if compacted:
        compact(LocalStore(path))
    whole, part = left_in(path), left_in(path, steps=(3, 6))
    # TRAIN steps 3, 4 and 5 are global steps 4, 5 and 6; an evaluation follows, global step 7.
    kept = [4, 5, 6, 7]
    assert sorted(part.steps) == kept
    assert [part.steps[n] for n in kept] == [whole.steps[n] for n in kept]
    assert [event["event"] for event in part.lifecycle] == ["joined", "left"]
    assert [fact.global_step for fact in part.facts()] == [-1, *kept]
    assert [len(part.rows(SCALARS, n)) for n in range(20)] == [n in kept for n in range(20)]
    assert [len(part.rows(UNITS, n)) for n in range(20)] == [n in kept for n in range(20)]
    assert [len(part.rows(RAW, n)) for n in range(20)] == [n in (5, 7) for n in range(20)]
    (a,) = ids(part, "a.weight")
    assert part.statistics.of_tensor(a)[0].tolist() == part.reduction_history(a, Reduction.MEDIAN)[0].tolist() == kept
    assert part.captured(a) == set(kept)
    assert part.statistics.read(global_steps=(0, 6)).global_step.tolist() == [4] * 3 + [5] * 3
    assert len(part.catalog) == len(whole.catalog)
    np.testing.assert_array_equal(part.statistics.at(5).values, whole.statistics.at(5).values)
    assert len(left_in(path, steps=(50, 60)).statistics.read()) == 0


def test_statistics_outside_a_range_are_not_decoded(tmp_path):
    path = build_run(tmp_path / "run", captures(30), steps_per_flush=3)
    expected = left_in(path, steps=(3, 6)).statistics.read()
    tables = left_in(path, steps=(3, 6))
    batches = [frame for _, _, frame in RunReader(LocalStore(path)).poll() if frame.kind == FrameKind.STATISTICS]
    for frame in batches[:1] + batches[3:]:  # two batches hold these steps
        with (tmp_path / "run" / frame.source).open("r+b") as segment:
            segment.seek(frame.offset + HEADER_BYTES)
            segment.write(bytes(len(frame.payload)))
    np.testing.assert_array_equal(tables.statistics.read().values, expected.values)
    assert tables.problems == []


def test_only_the_columns_that_are_asked_for_are_decoded(tmp_path):
    path = build_run(tmp_path / "run", captures(4))
    decoded = []

    def note(frame, event, _):
        if event == "call" and frame.f_code is decode_columns.__code__:
            decoded.extend(frame.f_locals["names"])

    tables = left_in(path)
    with profiled(note):
        tables.statistics.of_tensor(ids(tables, "a.weight")[0], fields=("max",))[:2]
    assert set(decoded) & set(STATISTIC_FIELDS) == {"max"}


def test_what_is_kept_decoded_is_bounded_and_shared_by_the_readers_of_a_store():
    cache = Decoded(limit=100)
    tokens = [new_token() for _ in range(5)]
    for token in tokens:
        cache.put(token, "values", token, 30)
    assert [cache.get(token, "values") for token in tokens] == [None, None, *tokens[2:]]
    cache.put(tokens[4], "values", "large", 1000)
    assert cache.get(tokens[4], "values") == "large"  # what is in use now fits in any case
    assert cache.get(tokens[3], "values") is None
    cache.drop(tokens[4], ["values"])
    cache.put(tokens[0], "values", 0, 30)
    cache.put(tokens[1], "values", 1, 30)
    assert cache.get(tokens[0], "values") == 0


def test_payloads_beyond_the_bound_are_fetched_again(tmp_path):
    """On an object store nothing is left behind when it is read; what is too much to keep is asked for again."""
    fetched = []

    class Objects(LocalStore):
        appends = False

        def read_many(self, ranges):
            fetched.append(len(ranges))
            return super().read_many(ranges)

    path = build_run(tmp_path / "run", captures(30), steps_per_flush=3)
    expected = left_in(path).statistics.read(histograms=True)
    store = Objects(path)
    tables = WorkerTables(store, kept_bytes=10_000)
    for _, _, frame in RunReader(store, leave=(FrameKind.STATISTICS,)).poll():
        assert frame.left == 0
        tables.ingest(frame)
    fetched.clear()
    found = tables.statistics.read(histograms=True)
    assert sum(fetched) > 3
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.histograms.counts, expected.histograms.counts)


def test_statistics_that_were_compacted_and_removed_meanwhile_ask_for_a_new_beginning(tmp_path):
    path = build_run(tmp_path / "run", captures(6), steps_per_flush=3)
    early, removed = left_in(path), left_in(path)
    compact(LocalStore(path))
    with pytest.raises(CompactedError, match="open it again"):
        early.statistics.read()
    shutil.rmtree(tmp_path / "run" / "compacted")
    assert len(removed.statistics.read()) == 0
    assert "removed" in removed.problems[0].what


def test_statistics_that_make_no_sense_are_reported_and_their_neighbours_are_read(tmp_path):
    path = build_run(tmp_path / "run", captures(6), steps_per_flush=3)
    frames = [frame for _, _, frame in RunReader(LocalStore(path)).poll()]
    payload = bytearray(next(frame.payload for frame in frames if frame.kind == FrameKind.STATISTICS))
    for at in range(len(payload) * 2 // 3, len(payload) - 16):
        payload[at] ^= 0x5A
    nonsense = [
        encode_frame(FrameKind.STATISTICS, b"\xffnonsense"), encode_frame(FrameKind.STATISTICS, bytes(payload)),
        encode_frame(FrameKind.COMPACTED, b'{"path": "../x"}'),
    ]  # fmt: skip
    SegmentWriter(LocalStore(path), 0, "worker_0").write(nonsense)
    tables = left_in(path)
    assert len(tables.statistics.read()) == 18
    assert len(tables.statistics.at(1).ids) == 3
    assert len(tables.problems) == 3
    assert all("worker_0" in str(problem) for problem in tables.problems)


def test_what_is_disposed_of_while_the_cache_is_at_work_is_not_waited_for():
    """The garbage collector runs anywhere, and tables forget what they kept when they are collected."""
    cache = Decoded(limit=100)
    gone, kept = new_token(), new_token()

    class Size(int):
        def __sub__(self, other):
            cache.drop(gone, ("a",))
            return int(self) - other

    cache.put(gone, "a", "old", 10)
    thread = threading.Thread(target=lambda: cache.put(kept, "a", "new", Size(60)), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    cache.put(kept, "b", "more", 40)
    assert cache.get(gone, "a") is None
    assert (cache.get(kept, "a"), cache.get(kept, "b")) == ("new", "more")
    cache.drop(kept, ("a",))
    cache.put(kept, "c", "last", 60)
    assert (cache.get(kept, "b"), cache.get(kept, "c")) == ("more", "last")


def test_problems_without_end_are_counted():
    tables = WorkerTables()

    def damaged(first, last):
        for offset in range(first, last):
            tables.ingest(Frame(FrameKind.HEADER, 1, b"{", offset, "segment"))
        return [str(problem) for problem in tables.problems]

    problems = [f"segment at byte {offset}: a header is not JSON" for offset in range(10_997)]
    assert damaged(0, 10_000) == problems[:10_000]
    assert damaged(10_000, 10_001) == problems[:10_001]
    assert damaged(10_001, 10_997) == [*problems[:10_000], f"{problems[-1]} (and 996 more problems before it)"]
