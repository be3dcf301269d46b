"""The Run API on runs that the real writer wrote."""

import math

import numpy as np
import pytest

from calls import counted_calls
from watchglass.errors import InvalidValueError, MissingFileError, NotARunError, UnknownNameError
from watchglass.records import SCALARS, Finding, Mode, Observation, Reduction, Role, RuleStatus, Severity, Status
from watchglass.rules import Needs
from watchglass.run import Run, Tensor, open_run
from watchglass.store import dtype_of, encode_rows, open_store
from watchglass.tables import Catalog, WorkerTables
from watchglass.testing import RunBuilder, Step, build_run

pytestmark = pytest.mark.own_process


def finding(count):
    return Finding(
        "0123456789ab", "R", Severity.WARNING, 1, count, count, Mode.TRAIN, "worker_0", (), math.nan, None, "m"
    )


@pytest.fixture
def path(tmp_path):
    steps = []
    for epoch in range(3):
        for n in range(4):
            statistics = {"fc1.weight": np.full((2, 3), epoch + n), "gradient/fc1.weight": np.ones((2, 3))}
            raw = {"fc1.weight": np.full((2, 3), n, "f4")} if n == 0 else {}
            steps.append(Step({"loss": 10.0 - n}, statistics if n % 2 == 0 else {}, raw=raw))
        steps += [Step({"loss": float(n)}, mode=Mode.EVAL, weight=1.0 + 2 * n, workers=[0]) for n in range(2)]
    journal = [finding(1), RuleStatus("R", Status.IN_PROGRESS), Observation("o", 0), finding(5),
               RuleStatus("R", Status.ISSUES_FOUND)]  # fmt: skip
    return build_run(tmp_path / "run", steps, modules={"fc1": "Linear"}, workers=2, journal=journal)


@pytest.fixture
def run(path):
    return open_run(path)


def test_steps_by_mode_and_worker(run):
    assert run.workers == ["worker_0", "worker_1"]
    assert run.attempts == [0]
    assert run.steps() == list(range(12))
    assert run.steps(Mode.EVAL) == list(range(6))
    assert run.steps(Mode.EVAL, "worker_1") == []
    assert run.steps(Mode.GLOBAL) == list(range(18))
    assert run.finished
    assert run.lost == run.problems == []
    assert run.worker().seconds == pytest.approx(1.8)


def test_names_by_what_they_are(run):
    assert run.tensor_names() == ["loss", "fc1.weight", "gradient/fc1.weight"]
    assert run.tensor_names(regex="weight$", role=Role.GRADIENT) == ["gradient/fc1.weight"]
    assert run.tensor_names(role="loss") == ["loss"]
    assert run.tensor_names(module="fc1") == ["fc1.weight", "gradient/fc1.weight"]
    assert run.tensor_names(mode=Mode.EVAL) == ["loss"]
    assert run.tensor_names(collection="mine") == []
    with pytest.raises(InvalidValueError, match="gradient"):
        run.tensor_names(role="gradients")
    with pytest.raises(InvalidValueError, match="regular expression"):
        run.tensor_names(regex="(")


def test_scalars_are_courses_over_mode_steps(run):
    steps, values = run.scalars("loss", Mode.EVAL)
    assert steps.tolist() == list(range(6))
    assert values.tolist() == [0.0, 1.0] * 3
    assert run.tensor("loss").value(1) == 9.0
    assert run.tensor("loss").values(Mode.EVAL) == {n: float(n % 2) for n in range(6)}
    with pytest.raises(UnknownNameError, match='did you mean "loss"'):
        run.scalars("los")


def test_modes_are_taken_by_their_names_everywhere(tmp_path):
    run_path = tmp_path / "named"
    run = open_run(build_run(run_path, [Step(scalars={"loss": 1.0}), Step(scalars={"loss": 2.0}, mode="eval")]))
    worker = run.worker()
    assert worker.stretches("eval") == worker.stretches(Mode.EVAL) == run.stretches("EVAL")
    assert worker.stretches_by_model("eval") == worker.stretches_by_model(Mode.EVAL)
    assert worker.names_of("eval") == worker.names_of(Mode.EVAL)
    assert run.modes == [Mode.TRAIN, Mode.EVAL]
    assert Needs(scalars=("loss",), modes=("eval", "train")).modes == (Mode.EVAL, Mode.TRAIN)
    for wrong in ("global", "evaluation", Mode.GLOBAL, 2):
        with pytest.raises(InvalidValueError, match='mode must be "train", "eval" or "predict" but got '):
            build_run(run_path.with_name(f"wrong_{wrong!r}"), [Step(mode=wrong)])


def test_an_evaluation_is_a_stretch_with_weighted_means(run):
    stretches = run.stretches()
    assert [(p.mode, p.train_step, p.first_step, p.last_step) for p in stretches] == [
        (Mode.EVAL, 3, 0, 1), (Mode.EVAL, 7, 2, 3), (Mode.EVAL, 11, 4, 5)
    ]  # fmt: skip
    assert stretches[0].means == {"loss": pytest.approx(0.75)}
    assert [p.last_step for p in run.stretches(Mode.TRAIN)] == [3, 7, 11]


def test_a_tensor_over_its_steps(run):
    tensor = run.tensor("fc1.weight")
    assert isinstance(tensor, Tensor)
    assert tensor.steps() == [0, 2, 4, 6, 8, 10]
    assert tensor.reduction(6, "mean") == 3.0
    steps, values = tensor.reductions("abs_mean")
    assert (steps.tolist(), values.tolist()) == ([0, 2, 4, 6, 8, 10], [0.0, 2.0, 1.0, 3.0, 2.0, 4.0])
    assert tensor.value(4).tolist() == [[0.0] * 3] * 2
    assert list(tensor.values()) == [0, 4, 8]
    assert (tensor.info.role, tensor.info.module_type, tensor.info.shape) == (Role.WEIGHT, "Linear", (2, 3))


def test_what_is_not_there_says_what_is(run):
    tensor = run.tensor("fc1.weight")
    with pytest.raises(UnknownNameError, match="recorded at 0, 2, 4"):
        tensor.reduction(1, "mean")
    with pytest.raises(UnknownNameError, match="0 to 11"):
        tensor.value(12)
    with pytest.raises(UnknownNameError, match="collection"):
        tensor.value(2)
    with pytest.raises(InvalidValueError, match="abs_mean"):
        tensor.reduction(0, "average")
    with pytest.raises(UnknownNameError, match=r'did you mean "fc1\.weight"'):
        run.tensor("fc1.weights")
    with pytest.raises(UnknownNameError, match="worker_0, worker_1"):
        run.steps(worker="worker_7")
    with pytest.raises(UnknownNameError, match="no attempt 3"):
        open_run(run.location, attempt=3)


def test_the_journal_in_its_newest_state(run):
    (found,) = run.journal.findings
    assert found.count == 5
    assert run.journal.statuses == [RuleStatus("R", Status.ISSUES_FOUND)]
    assert run.journal.observations == [Observation("o", 0)]


def test_repr_says_what_is_there(run):
    expected = "2 workers, 12 TRAIN and 6 EVAL steps, 3 tensors, 1 finding, finished)"
    assert repr(run) == f"Run({run.location!r}: {expected}"
    assert repr(run.tensor("fc1.weight")) == "Tensor('fc1.weight': weight of fc1 (Linear), int64[2, 3], 6 TRAIN steps)"
    assert repr(run.tensor("loss")).startswith("Tensor('loss': loss, ")


def test_a_run_is_followed_while_it_is_written(tmp_path):
    with RunBuilder(tmp_path / "run") as builder:
        run = open_run(tmp_path / "run")
        assert run.steps() == []
        assert run.tensor_names() == []
        assert not run.finished
        assert "no steps" in repr(run)
        assert not run.refresh()
        builder.step(scalars={"loss": 1.0})
        builder.step(scalars={"loss": 0.5}, flush=False)
        assert run.refresh()
        assert run.steps() == [0]
        builder.flush()
        run.refresh()
        assert run.tensor("loss").values() == {0: 1.0, 1: 0.5}
        builder.leave("stopped", reason="asked")
        run.refresh()
    assert run.finished
    assert run.worker().lifecycle[-1]["status"] == "stopped"


def test_the_newest_attempt_with_a_step_is_examined(tmp_path):
    with RunBuilder(tmp_path / "run") as first:
        first.step(scalars={"loss": 1.0})
        first.leave("failed")
    with RunBuilder(tmp_path / "run") as second:
        run = open_run(tmp_path / "run")
        assert (run.attempt, run.attempts, run.finished) == (0, [0, 1], False)
        second.step(scalars={"loss": 2.0})
        run.refresh()
        assert run.attempt == 1
        assert run.scalars("loss")[1].tolist() == [2.0]
        assert open_run(tmp_path / "run", attempt=0).scalars("loss")[1].tolist() == [1.0]


def test_a_killed_training_is_lost_and_readable(tmp_path):
    run = open_run(build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}], status=None))
    assert not run.finished
    assert run.lost == ["worker_0"]
    assert "lost" in repr(run)
    segment = next((tmp_path / "run").glob("attempts/*/segments/*/*"))
    segment.write_bytes(segment.read_bytes()[:-1])
    (problem,) = open_run(tmp_path / "run").problems
    assert "ends within a frame" in str(problem)


def test_of_a_step_that_was_written_twice_the_last_rows_count(tmp_path):
    from watchglass.store import LocalStore, SegmentWriter

    path = build_run(tmp_path / "run", [Step({"loss": 1.0, "lr": 0.5}, weight=1.0)] * 2)
    rows = np.array([(0, 0, 3.0, 5.0)], dtype=dtype_of(SCALARS))
    SegmentWriter(LocalStore(path), 0, "worker_0").write([encode_rows(SCALARS, rows)])
    run = open_run(path)
    assert run.tensor("loss").values() == {0: 5.0, 1: 1.0}
    assert [column.tolist() for column in run.scalars("loss")] == [[0, 1], [5.0, 1.0]]
    (stretch,) = run.stretches(Mode.TRAIN)
    assert stretch.means == {"loss": pytest.approx((3 * 5.0 + 1.0) / 4), "lr": 0.5}


def test_names_of_a_mode_are_those_with_anything_recorded_in_it(tmp_path):
    first = Step(
        {"loss": 1.0}, {"a.weight": np.ones(2)}, raw={"b.weight": np.ones(2)},
        reductions={"c.weight": {Reduction.MEDIAN: 1.0}},
    )  # fmt: skip
    both = [first, Step({"accuracy": 0.5}, {"d.weight": np.ones(2)}, mode=Mode.EVAL)]
    run = open_run(build_run(tmp_path / "run", both))
    train = {"loss", "a.weight", "b.weight", "c.weight"}
    assert set(run.tensor_names(mode=Mode.TRAIN)) == train
    assert set(run.tensor_names(mode=Mode.EVAL)) == {"accuracy", "d.weight"}
    assert set(run.tensor_names(mode=Mode.GLOBAL)) == {*train, "accuracy", "d.weight"}
    assert run.tensor_names(mode=Mode.PREDICT) == []
    for mode in Mode:
        assert run.tensor_names(mode=mode) == [n for n in run.tensor_names() if run.tensor(n).steps(mode)]


def test_a_loop_over_names_looks_each_up_once(tmp_path):
    """With ten thousand tensors, anything else takes minutes."""
    run = open_run(build_run(tmp_path / "run", [Step({f"s{n}": 1.0 for n in range(50)})]))
    with counted_calls() as calls:
        found = run.tensor_names(mode=Mode.TRAIN)
        assert [run.tensor(name).name for name in found] == [f"s{n}" for n in range(50)]
    assert calls[Run.tensor.__code__] == 50
    assert calls[Catalog.names.fget.__code__] == calls[WorkerTables.captured.__code__] == 0


def test_what_is_no_run_is_reported_in_one_line(tmp_path):
    with pytest.raises(MissingFileError):
        open_run(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotARunError):
        Run(open_store(str(tmp_path)))
