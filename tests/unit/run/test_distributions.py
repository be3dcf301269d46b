"""Histograms, quantiles and every reduction by name, through the Run API and as a rule sees them."""

import numpy as np
import pytest

from calls import counted_calls
from watchglass import records
from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import STATISTIC_FIELDS, Mode, Reduction, Role
from watchglass.run import open_run
from watchglass.stats import Histograms, exact_reduction, histograms_of
from watchglass.store import (
    LocalStore,
    RunReader,
    SegmentWriter,
    StatisticsBatch,
    decode_histograms,
    dtype_of,
    encode_rows,
    encode_statistics,
    scan,
)
from watchglass.tables import REDUCTIONS, History, Statistics, StepRecords, StepView, WorkerTables
from watchglass.tables.stored_statistics import StoredStatistics
from watchglass.testing import Row, Step, build_run

pytestmark = pytest.mark.own_process

#: What a hook configuration of SageMaker Debugger may ask for, beside the abs_ forms.
CLASSIC = ("min", "max", "mean", "std", "variance", "sum", "prod", "median", "l1", "l2")


def array(n):
    values = np.random.default_rng(n).normal(size=(20, 30)) * 10.0**n
    values[0, :5] = 0.0
    return values


def exact(values):
    return {which: exact_reduction(values, which) for which in Reduction}


@pytest.fixture
def run(tmp_path):
    steps = [
        Step(
            {"loss": 1.0},
            {"fc1.weight": array(n), "gradient/fc1.weight": -array(n), "b": Row({"max": 1.0})} if n % 2 == 0 else {},
            reductions={"fc1.weight": exact(array(n))} if n % 2 == 0 else {},
            raw={"fc1.weight": array(n)} if n == 5 else {},
            mode=Mode.EVAL if n == 6 else Mode.TRAIN,
        )
        for n in range(8)
    ]
    return open_run(build_run(tmp_path / "run", steps, steps_per_flush=3))


def reference(name, values):
    magnitudes = np.abs(values) if name.startswith("abs_") else values
    plain = name.removeprefix("abs_")
    functions = {
        "variance": np.var, "l1": lambda x: np.abs(x).sum(), "l2": lambda x: np.sqrt(np.square(x).sum()),
    }  # fmt: skip
    return functions[plain](magnitudes) if plain in functions else getattr(np, plain)(magnitudes)


@pytest.mark.parametrize("name", [prefix + name for name in CLASSIC for prefix in ("", "abs_")])
def test_every_reduction_of_the_original_is_there_by_name(run, name):
    assert name in REDUCTIONS
    tensor = run.tensor("fc1.weight")
    steps, values = tensor.reductions(name)
    assert steps.tolist() == [0, 2, 4]
    np.testing.assert_allclose(values, [reference(name, array(n)) for n in (0, 2, 4)], rtol=1e-12, atol=1e-12)
    assert tensor.reduction(2, name) == values[1]
    assert tensor.reduction(5, name) == pytest.approx(reference(name, array(5)))  # from the whole tensor
    assert tensor.reduction(0, name, Mode.EVAL) == pytest.approx(reference(name, array(6)))
    by_column = run.step(2).statistics().reduction(name)
    assert by_column[0] == values[1]


def test_exact_reductions_need_no_statistics_beside_them(tmp_path):
    steps = [{"scalars": {"loss": 1.0}}, {"reductions": {"a": {Reduction.PROD: -6.0, Reduction.MEDIAN: 2.0}}}]
    run = open_run(build_run(tmp_path / "run", steps))
    tensor = run.tensor("a")
    assert tensor.steps() == [1]
    assert [tensor.reduction(1, name) for name in ("prod", "abs_prod", "median")] == [-6.0, 6.0, 2.0]
    rows = np.array([(1, 1, 99, 0.5)], dtype_of(records.REDUCTIONS))  # of a later release
    (frame,) = scan(encode_rows(records.REDUCTIONS, rows)).frames
    run.worker().tables.ingest(frame)
    assert {row.reduction for row in run.worker().tables.rows(records.REDUCTIONS, 1)} == {
        Reduction.PROD,
        Reduction.MEDIAN,
    }


def test_a_reduction_that_was_not_asked_for_says_how(run):
    tensor = run.tensor("gradient/fc1.weight")
    with pytest.raises(UnknownNameError, match=r"reductions='median'.*recorded at 0, 2, 4"):
        tensor.reduction(2, "median")
    with pytest.raises(UnknownNameError, match="no statistics"):
        tensor.reduction(1, "mean")
    with pytest.raises(InvalidValueError, match="abs_median"):
        tensor.reduction(2, "mode")
    statistics = run.step(2).statistics(Role.GRADIENT)
    assert np.isnan(statistics.reduction("prod")).all()
    with pytest.raises(InvalidValueError, match="abs_median"):
        statistics.reduction("mode")


def test_a_histogram_has_edges_and_counts_all(run):
    found = run.tensor("fc1.weight").histogram(2)
    assert (found.count, found.seen, found.zero, found.nonfinite) == (600, 600, 5, 0)
    assert int(found.counts.sum()) == 595
    assert (found.low < found.high).all()
    assert (np.diff(found.low) > 0).all()
    values = np.sort(array(2).ravel())
    for low, high, count in zip(found.low, found.high, found.counts, strict=True):
        inside = (values >= low) & (values < high) if low > 0 else (values > low) & (values <= high)
        assert inside.sum() == count
    assert "600 elements" in repr(found)
    assert sorted(run.tensor("fc1.weight").histograms()) == [0, 2, 4]
    assert sorted(run.tensor("fc1.weight").histograms(Mode.EVAL)) == [0]


def test_quantiles_are_right_within_a_bin(run):
    wanted = [0.0, 0.1, 0.5, 0.9, 1.0]
    tensor = run.tensor("fc1.weight")
    steps, values = tensor.quantiles(wanted)
    assert steps.tolist() == [0, 2, 4]
    for step, row in zip(steps, values, strict=True):
        true = np.quantile(array(int(step)), wanted)
        assert (np.abs(row - true) <= 0.5 * np.abs(true) + 1e-2 * 10.0**step).all()
        assert true[0] <= row[0]
        assert row[-1] <= true[-1]
        np.testing.assert_array_equal(tensor.histogram(int(step)).quantile(wanted), row)
    assert tensor.histogram(2).quantile(0.5).shape == ()
    statistics = run.step(2).statistics()
    assert statistics.quantile(0.9)[0] == values[1][3]
    assert np.isnan(statistics.quantile(0.9)[2])
    for use in (tensor.quantiles, tensor.histogram(2).quantile, statistics.quantile):
        with pytest.raises(InvalidValueError, match="0 to 1"):
            use(1.5)


def test_a_histogram_that_is_not_there_is_named(run):
    with pytest.raises(UnknownNameError, match="recorded at 0, 2, 4, 5"):
        run.tensor("fc1.weight").histogram(5)
    with pytest.raises(UnknownNameError, match="save_histogram"):
        run.tensor("b").histogram(0)
    with pytest.raises(UnknownNameError, match="TRAIN step 99 does not exist"):
        run.tensor("fc1.weight").histogram(99)
    with pytest.raises(UnknownNameError, match="TRAIN step 99 does not exist"):
        run.step(99).statistics()


def test_statistics_of_a_step_by_role(run):
    assert run.step(2).statistics().names == ["fc1.weight", "gradient/fc1.weight", "b"]
    weights = run.step(4).statistics("weight")
    assert weights.names == ["fc1.weight"]
    assert weights.max.tolist() == [array(4).max()]
    assert weights.histograms.seen.tolist() == [600]
    assert len(run.step(1).statistics()) == 0
    assert len(run.step(1).statistics().histograms) == 0
    assert run.step(0, Mode.EVAL).statistics().max[0] == array(6).max()


def test_rules_see_the_same(run):
    tables = run.worker().tables
    rows = tables.statistics.at(2)
    records = StepRecords(tables.steps[2], tables.catalog, tables.step_rows(2, tables.catalog), rows)
    view = StepView.after(History(), records)
    gradients = view.statistics(Role.GRADIENT)
    assert gradients.histograms.seen.tolist() == [600]
    assert gradients.quantile(0.5)[0] == pytest.approx(-np.median(array(2)), rel=0.5)
    assert view.statistics().where(np.array([True, False, True])).reduction("median")[0] == np.median(array(2))
    bare = StepView.after(History(), StepRecords(tables.steps[2], tables.catalog, {}, rows._replace(histograms=None)))
    assert np.isnan(bare.statistics().quantile(0.5)).all()
    assert isinstance(bare.statistics().in_layer_order(), Statistics)


def test_histograms_are_decoded_only_when_asked_for_and_once(run):
    fresh = open_run(run.location)
    with counted_calls() as calls:
        fresh.tensor("fc1.weight").reductions("mean")
        statistics = fresh.step(2).statistics()
        assert calls[decode_histograms.__code__] == 0
        assert statistics.histograms.seen.tolist() == [600, 600, 0]
        assert fresh.step(0).statistics().histograms.seen.tolist() == [600, 600, 0]
    assert calls[decode_histograms.__code__] == 1, "both steps are of one batch"


def test_a_loop_over_steps_reads_each_step_once(tmp_path):
    """Not the whole course at every step: with thousands of steps that takes minutes."""
    steps = [Step({}, {"a": array(n)}, reductions={"a": exact(array(n))}) for n in range(12)]
    run = open_run(build_run(tmp_path / "run", steps, steps_per_flush=1))
    tensor = run.tensor("a")
    with counted_calls() as calls:
        for n in range(12):
            assert tensor.histogram(n).zero == 5
            assert tensor.reduction(n, "max") == array(n).max()
            assert tensor.reduction(n, "median") == np.median(array(n))
    assert calls[decode_histograms.__code__] == 12
    assert calls[StoredStatistics.of_tensor.__code__] == calls[WorkerTables.reduction_history.__code__] == 0


def test_histograms_that_make_no_sense_leave_the_rows_and_are_found_when_they_are_asked_for(tmp_path):
    path = build_run(tmp_path / "run", [Step({"loss": 1.0}, {"a": Row({"max": 1.0})})])
    histograms = Histograms.none(1)
    histograms.seen[:] = (1 << 64) - 1
    row = StatisticsBatch(
        np.zeros(1, np.uint64), np.ones(1, np.uint32), np.ones(1, np.uint32),
        np.full((1, len(STATISTIC_FIELDS)), 7.0), np.zeros(1, np.uint8), np.zeros(1, bool), histograms,
    )  # fmt: skip
    SegmentWriter(LocalStore(path), 0, "worker_0").write([encode_statistics(row)])
    fresh = open_run(path)
    assert fresh.step(0).statistics().max.tolist() == [7.0]
    assert fresh.problems == []
    assert fresh.tensor("a").histograms() == {}
    assert "histogram" in fresh.problems[0].what


def test_repeated_flushes_and_forgotten_steps(run):
    tables = run.worker().tables
    frames = [frame for _, _, frame in RunReader(LocalStore(run.location)).poll()]
    for frame in frames:
        tables.ingest(frame)
    rows = tables.statistics.at(2)
    assert rows.histograms.get().seen.tolist() == [600, 600, 0]
    steps, values, lazy = tables.statistics.of_tensor(rows.ids[0])
    assert steps.tolist() == [0, 2, 4, 6]
    assert len(values) == len(lazy.get()) == 4
    assert np.array_equal(lazy.get().row(1)[1], histograms_of([array(2)]).counts)
    assert tables.reduction_history(int(rows.ids[0]), Reduction.PROD)[0].tolist() == [0, 2, 4, 6]
    assert int(rows.ids[0]) in {row.tensor.tensor_id for row in tables.rows(records.REDUCTIONS, 2)}
    tables.forget(3)
    assert tables.rows(records.REDUCTIONS, 2) == []
    assert len(tables.statistics.at(2).ids) == 0
