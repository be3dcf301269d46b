"""Tables of one worker by step and as a whole."""

import json

import numpy as np
import pytest

from watchglass.records import Fact, Mode, Origin, Role, TensorInfo, UnitKind
from watchglass.run import WorkerTables
from watchglass.stats import column, of_array
from watchglass.store import Frame, FrameKind, LocalStore, RunReader
from watchglass.testing import Row, build_run


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
    loss = tables.catalog.by_name("loss").tensor_id
    assert tables.scalars(4) == [(loss, 4.0, 8.0)]
    assert tables.scalars(99) == []
    assert [fact.data for fact in tables.facts(3)] == [{"n": 3}]
    assert [fact.kind for fact in tables.facts()] == ["model", "step_skipped"]
    assert [event["event"] for event in tables.lifecycle] == ["joined", "left"]
    assert len(tables.headers) == 1


def test_statistics_are_found_by_step_in_columns(tables, arrays):
    rows = tables.statistics(4)
    names = [tables.catalog[int(i)].name for i in rows.ids]
    assert names == ["fc1.weight", "gradient/fc1.weight"]
    np.testing.assert_array_equal(rows.values[0], of_array(arrays[4]))
    assert (rows.ids.dtype, rows.values.shape, rows.calls.dtype, rows.sampled.dtype) == ("u4", (2, 11), "u4", "?")
    empty = tables.statistics(5)
    assert (len(empty.ids), empty.values.shape) == (0, (0, 11))


def test_bitmaps_come_as_flags(tables):
    ((tensor_id, kind, flags),) = tables.units(1)
    assert tables.catalog[tensor_id].name == "fc1.output"
    assert kind is UnitKind.INACTIVE
    assert flags.tolist() == [True, True, False]


def test_histories_are_in_the_order_of_steps(tables, arrays):
    steps, values, weights = tables.scalar_history(tables.catalog.by_name("loss").tensor_id)
    assert steps.tolist() == values.tolist() == list(range(10))
    assert set(weights.tolist()) == {8.0}
    steps, rows = tables.statistics_history(tables.catalog.by_name("fc1.weight").tensor_id)
    assert steps.tolist() == [0, 2, 4, 6, 8]
    np.testing.assert_allclose(column(rows, "mean"), [arrays[n].mean() for n in steps])
    assert tables.captured(tables.catalog.by_name("fc1.weight").tensor_id) == {0, 2, 4, 6, 8}


def test_rows_written_because_of_a_finding_are_left_out_unless_asked_for(tmp_path):
    row = Row({"max": 7.0}, origin=Origin.FINDING, sampled=True, calls=3)
    path = build_run(tmp_path / "run", [{"statistics": {"a.weight": row, "b.weight": np.ones(2)}}])
    tables = tables_of(path)
    assert len(tables.statistics(0).ids) == 1
    rows = tables.statistics(0, planned_only=False)
    assert (rows.calls.tolist(), rows.sampled.tolist()) == ([3, 1], [True, False])
    assert len(tables.statistics_history(0)[0]) == 0
    assert len(tables.statistics_history(0, planned_only=False)[0]) == 1


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
    assert tables.statistics(0).ids.tolist() == ids
    assert tables.statistics_history(ids[1])[0].tolist() == [0]
    loss = tables.catalog.by_name("loss").tensor_id
    assert [row[1] for row in tables.scalars(0)] == tables.scalar_history(loss)[1].tolist() == [1.0]
    assert len(tables.units(0)) == 1
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
    assert "a fact" in second
    assert "and 1 more rows" in second


def test_forgetting_keeps_what_comes_after(tables):
    tables.forget(6)
    assert sorted(tables.steps) == [6, 7, 8, 9]
    assert tables.scalars(5) == []
    assert len(tables.scalars(6)) == 1
    assert len(tables.statistics(4).ids) == 0
    assert len(tables.statistics(6).ids) == 2
    assert tables.units(2) == []
    assert [fact.kind for fact in tables.facts()] == ["model"]
    assert len(tables.catalog) == 4
