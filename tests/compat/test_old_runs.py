"""Runs of earlier versions of the format are read for ever; each lies here as it was written, see make.py."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import UnknownNameError
from watchglass.evaluate import replay
from watchglass.records import FORMAT_VERSION, Finding, Mode, Observation, Role, RuleStatus, Severity, Status, UnitKind
from watchglass.run import Run, open_run
from watchglass.stats import of_array
from watchglass.store import LocalStore, layout
from watchglass.testing import Step, build_run

HERE = Path(__file__).parent
#: Of versions that wrote the same: what is in them is said in make.py.
ALIKE = sorted(path.name for path in HERE.glob("1.*") if path.name != "1.0")


def kept(version: str, folder: Path) -> Path:
    """A copy, since no test may change what is kept."""
    return Path(shutil.copytree(HERE / version, folder / "run"))


@pytest.fixture(params=ALIKE)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return kept(request.param, tmp_path)


@pytest.fixture
def first(path: Path) -> Run:
    return open_run(path, attempt=0)


@pytest.fixture
def second(path: Path) -> Run:
    return open_run(path, attempt=1)


def test_a_run_of_format_1_0(tmp_path: Path) -> None:
    """Written before there were histograms and exact reductions."""
    run = open_run(kept("1.0", tmp_path))
    assert run.manifest.format == (1, 0)
    assert run.problems == []
    assert run.finished
    assert run.workers == ["worker_0", "worker_1"]
    assert list(run.steps()) == [0, 1, 2, 3, 4, 5]
    assert list(run.steps(Mode.EVAL)) == [0]
    assert run.scalars("loss")[1].tolist() == [1 / (n + 1) for n in range(6)]
    weights = np.arange(6.0).reshape(2, 3)
    tensor = run.tensor("fc1.weight")
    steps, means = tensor.reductions("mean")
    assert (steps.tolist(), means.tolist()) == ([0, 2, 4], [2.5, 4.5, 6.5])
    assert np.array_equal(tensor.value(4), weights + 4)
    assert tensor.reduction(4, "median") == 6.5  # from the whole tensor
    assert tensor.histograms() == {}
    with pytest.raises(UnknownNameError, match="no histogram"):
        tensor.histogram(2)
    statistics = run.step(2).statistics(Role.GRADIENT)
    assert statistics.names == ["gradient/fc1.weight"]
    assert statistics.values.tobytes() == of_array(2 * weights)[None].tobytes()
    assert np.isnan(statistics.quantile(0.5)).all()
    ((_, kind, flags),) = run.worker().tables.units(2)
    assert (kind, flags.tolist()) == (UnitKind.INACTIVE, [False, True, False])
    assert [fact.kind for fact in run.facts()] == ["model", "step_skipped"]
    assert [finding.rule for finding in run.journal.findings] == ["R"]


def test_the_version_the_workers_and_the_steps(path: Path, first: Run, second: Run) -> None:
    assert ".".join(map(str, first.manifest.format)) in ALIKE
    assert len(first.manifest.run_id) == 32
    assert first.manifest.command == ("train.py",)
    assert first.problems == second.problems == []
    assert first.attempts == [0, 1]
    assert first.workers == second.workers == ["worker_0", "worker_1"]
    assert list(first.steps()) == [0, 1, 2, 3]
    assert list(first.steps(Mode.EVAL, "worker_0")) == [0, 1]
    assert list(first.steps(Mode.EVAL, "worker_1")) == []
    assert list(first.steps(Mode.PREDICT, "worker_1")) == [0]
    assert list(second.steps()) == [0, 1, 2]
    ends = first.worker("worker_0").tables.steps
    assert [end.order for _, end in sorted(ends.items())] == [
        (0, 0, 0), (1, 0, 1), (1, 2, 0), (1, 2, 1), (2, 0, 2), (3, 0, 3),
    ]  # fmt: skip
    assert [end.captures for _, end in sorted(ends.items())] == [4, 1, 1, 1, 4, 1]
    assert ends[4].end_ns - ends[4].start_ns == 100_000_000
    assert first.worker().seconds == pytest.approx(0.6)


def test_scalars(first: Run, second: Run) -> None:
    assert first.scalars("loss")[1].tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert second.scalars("loss", worker="worker_1")[1].tolist() == [10, 11, 12]
    # A later row of the catalog named what was "lr" until then, in one worker.
    assert first.scalars("learning_rate", worker="worker_0")[1].tolist() == [0.5] * 4
    assert first.scalars("lr", worker="worker_1")[1].tolist() == [0.5] * 4
    steps, values = first.scalars("accuracy", Mode.EVAL)[:2]
    assert (steps.tolist(), values.tolist()) == ([0, 1], [0.25, 0.75])
    assert first.worker().tables.scalars(2)[0][2] == 32.0
    assert math.isnan(first.scalars("loss", Mode.PREDICT, worker="worker_1")[1][0])


def test_statistics(first: Run, second: Run) -> None:
    rows = first.step(2).statistics()
    assert rows.names == ["fc1.weight", "gradient/fc1.weight", "fc1.output", "fc2.weight"]
    nan = math.nan
    expected = [
        # count, nan, posinf, neginf, zero, min, max, sum, abs_sum, m2, l2
        [6, 0, 0, 0, 0, 2, 7, 27, 27, 17.5, math.sqrt(139)],
        [6, 0, 0, 0, 0, -16, 16, 0, 56, 672, math.sqrt(672)],
        [9, 1, 1, 1, 3, -3, 96, 94.5, 100.5, 9227.25 - 94.5**2 / 6, math.sqrt(9227.25)],
        [10, 0, 0, 0, 0, 0, 0, 5, 0, 0, 2.5],
    ]
    assert not np.isnan(rows.values).any()
    assert rows.values[:, :9].tolist() == [row[:9] for row in expected]
    assert np.allclose(rows.values, expected, rtol=1e-14)
    assert np.asarray(rows.calls).tolist() == [1, 1, 1, 3]
    assert np.asarray(rows.sampled).tolist() == [False, False, False, True]
    steps, means = first.tensor("fc1.weight").reductions("mean")
    assert (steps.tolist(), means.tolist()) == ([0, 2], [2.5, 4.5])  # no row that was written because of a finding
    asked_for = first.worker().tables.statistics(5, planned_only=False)
    assert asked_for.values.tolist() == [[6, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0]]
    row = second.tensor("embedding.weight").info
    assert (row.role, row.module, row.module_type, row.layer_index) == (Role.WEIGHT, "embedding", "Embedding", 7)
    assert (row.shape, row.dtype, row.unit_axis, row.trainable, row.placement) == ((9, 2), "float16", 0, False, "shard")
    assert second.tensor("embedding.weight").reductions("sum")[1].tolist() == [0, 18, 36]
    assert nan != rows.values[0, 0]


def test_histograms(first: Run) -> None:
    """By the formula of docs/run-format.md: key of s * m * 2**e is s * (2 * (e + 1075) + b)."""
    known = {step: dict(zip(found.low.tolist(), found.counts.tolist(), strict=True))
             for step, found in first.tensor("fc1.output").histograms().items()}  # fmt: skip
    assert list(known) == [0, 2]
    assert known[2] == {-4.0: 1, 1.5: 1, 96.0: 1}
    gradient = first.tensor("gradient/fc1.weight").histogram(2)
    assert gradient.counts.tolist() == [1] * 6
    assert gradient.quantile([0.0, 1.0]).tolist() == [-16.0, 16.0]
    with pytest.raises(UnknownNameError, match="no histogram"):
        first.tensor("fc2.weight").histogram(2)


def test_reductions_units_and_facts(first: Run) -> None:
    tensor = first.tensor("fc1.weight")
    for which, name in enumerate(("median", "prod", "abs_median", "abs_min"), 1):
        assert tensor.reductions(name)[1].tolist() == [0 + which / 2, 2 + which / 2]
    ((_, kind, flags),) = first.worker("worker_1").tables.units(2)
    assert (kind, flags.tolist()) == (UnitKind.INACTIVE, [False, True, False, False, False, False, False, True, True])
    facts = {fact.kind: fact for fact in first.facts()}
    assert set(facts) == {"model", "planned_steps", "step_skipped"}
    assert facts["model"].data == {"module_types": {"fc1": "Linear", "fc2": "Linear"}}
    assert (facts["model"].global_step, facts["model"].source) == (-1, "test")
    assert facts["step_skipped"].global_step == 1
    assert facts["step_skipped"].data == {"scale": 2.0, "numbers": ["NaN", None, 2**70]}


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("fc1.weight", "float32", [[0, 1, 2], [3, 4, 5]]),
        ("half", "float16", [0.5, -65504]),
        ("flags", "bool", [True, False]),
        ("counts", "int64", [-(2**62), 7]),
        ("number", "float64", 3.25),
        ("nothing", "float32", []),
        ("complex", "complex128", [[1 + 2j], [-0.5j]]),
        ("brain", "", [1.0, -5.0, math.inf]),
        ("fp8", "", [1.0, -2.0, 448.0]),
        ("fp8_wide", "", [1.0, -3.0, 57344.0]),
    ],
)
def test_raw_tensors(first: Run, name: str, dtype: str, expected: object) -> None:
    value = first.tensor(name).value(2, worker="worker_1")
    assert np.asarray(value).astype(complex).tolist() == np.asarray(expected).astype(complex).tolist()
    assert dtype in ("", str(np.asarray(value).dtype))
    assert value.shape == ((0, 3) if name == "nothing" else np.shape(expected))


def test_the_journal(first: Run) -> None:
    (finding,) = first.journal.findings
    expected = Finding(
        "0123456789ab", "R", Severity.ERROR, 1, 3, 3, Mode.TRAIN, "worker_0", ("fc1.weight",), math.nan, math.inf,
        "it is bad: ü", ("learning_rate_too_high",), ("lower it",), 0, 1, {"x": [1, "NaN"]},
    )  # fmt: skip
    assert finding.to_json() == expected.to_json()
    starved = RuleStatus("S", Status.STARVED, "nothing to eat")
    assert first.journal.statuses == [RuleStatus("R", Status.ISSUES_FOUND), starved]
    assert first.journal.observations == [Observation("worker_lost", 0, (3, 0, 3), {"worker": "worker_1"})]


def test_how_it_ended(path: Path, first: Run, second: Run) -> None:
    assert [event["event"] for event in first.worker().lifecycle] == ["joined"]
    joined, left = second.worker("worker_1").lifecycle
    assert (joined["pid"], joined["host"]) == (4242, "host")
    assert (left["status"], left["reason"], left["counters"]["steps"]) == ("stopped", "asked to", 3)
    store = LocalStore(path)
    assert json.loads(store.read(layout.stop_commit(1))) == {
        "stop_at_step": 2, "reason": "it is bad", "finding": "0123456789ab",
    }  # fmt: skip
    assert second.finished


def test_rules_can_be_replayed(path: Path) -> None:
    found = replay(path)
    assert found.problems == ()
    assert found.ended
    assert found.train_steps == 7


def test_what_is_written_now_says_so_and_is_kept_here(tmp_path: Path) -> None:
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0})]))
    assert run.manifest.format == FORMAT_VERSION
    assert (HERE / "{}.{}".format(*FORMAT_VERSION)).is_dir(), "keep a run of the version that is written now"


def test_the_runs_are_small() -> None:
    sizes = {path.name: sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in HERE.glob("1.*")}
    assert sum(sizes.values()) < 200_000, sizes
