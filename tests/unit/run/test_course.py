"""A run whose training was resumed: steps continue, replaced ones are seen once, one attempt alone stays readable."""

import numpy as np
import pytest

from watchglass.errors import StepNotRecordedError
from watchglass.records import Mode, Role
from watchglass.run import open_run
from watchglass.testing import RunBuilder


def record(builder, first, last, attempt, *, evaluate_every=3):
    """TRAIN steps of a training run whose own numbers begin at 0; every third is followed by an evaluation."""
    for step in range(first, last):
        value = float(100 * attempt + step)
        weights = np.full(4, value)
        builder.step(
            scalars={"loss": value}, statistics={"fc1.weight": weights} if step % 2 == 0 else {},
            raw={"fc1.weight": weights} if step % 4 == 0 else {}, facts={"note": {"value": value}},
        )  # fmt: skip
        if step % evaluate_every == evaluate_every - 1:
            builder.step(scalars={"loss": 1000.0 + value}, mode=Mode.EVAL)


@pytest.fixture
def path(tmp_path):
    """Killed after step 9, resumed from step 6 in a second attempt that goes on to step 12."""
    with RunBuilder(tmp_path / "run") as first:
        record(first, 0, 10, 0)
    with RunBuilder(tmp_path / "run", resumed={"start_step": 6, "source": "optimizer"}) as second:
        record(second, 6, 13, 1)
        second.leave()
    return tmp_path / "run"


@pytest.fixture
def run(path):
    return open_run(path)


VALUES = [*map(float, range(6)), *(100.0 + step for step in range(6, 13))]


def test_steps_continue_and_replaced_ones_are_seen_once(run):
    assert run.steps() == list(range(13))
    assert run.attempts == [0, 1]
    assert run.finished
    steps, values = run.scalars("loss")
    assert steps.tolist() == list(range(13))
    assert values.tolist() == VALUES
    assert run.tensor("loss").values() == dict(enumerate(VALUES))


def test_the_seam_is_reported(run):
    (seam,) = run.seams
    assert (seam.attempt, seam.step, seam.replaced) == (1, 6, 4)
    assert "continues at step 6" in str(seam)
    assert "2 attempts" in repr(run)
    assert "continues at step 6" in run._repr_html_()


def test_tensors_follow_the_course(run):
    tensor = run.tensor("fc1.weight")
    assert tensor.steps() == [0, 2, 4, 6, 8, 10, 12]
    steps, values = tensor.reductions("max")
    assert steps.tolist() == tensor.steps()
    assert values.tolist() == [VALUES[step] for step in steps]
    assert tensor.reduction(8, "max") == 108.0
    assert [tensor.value(step)[0] for step in (0, 4, 8, 12)] == [0.0, 4.0, 108.0, 112.0]
    assert sorted(tensor.values()) == [0, 4, 8, 12]
    assert [float(found.quantile(0.5)) for found in tensor.histograms().values()] == values.tolist()
    assert tensor.quantiles([0.5])[0].tolist() == steps.tolist()
    assert run.tensor_names(mode=Mode.EVAL) == ["loss"]


def test_evaluations_count_on(run):
    # After TRAIN steps 2 and 5 of the first attempt (its third came after 8), then after 8 and 11 of the second.
    assert run.steps(Mode.EVAL) == [0, 1, 2, 3]
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == [1002.0, 1005.0, 1108.0, 1111.0]
    assert [(stretch.train_step, stretch.means["loss"]) for stretch in run.stretches()] == [
        (2, 1002.0), (5, 1005.0), (8, 1108.0), (11, 1111.0)
    ]  # fmt: skip


def test_global_steps_are_those_of_the_course_and_convert_both_ways(run):
    every = run.steps(Mode.GLOBAL)
    assert every == list(range(17))
    converted = [run.mode_step(number) for number in every]
    assert [step for mode, step in converted if mode is Mode.TRAIN] == run.steps()
    assert [step for mode, step in converted if mode is Mode.EVAL] == run.steps(Mode.EVAL)
    for number, (mode, step) in zip(every, converted, strict=True):
        assert run.global_step(step, mode) == number
    assert run.scalars("loss", Mode.GLOBAL)[0].tolist() == every


def test_frozen_steps_and_facts_know_their_attempt(run):
    assert [(run.step(step).attempt, run.step(step).scalars["loss"]) for step in (5, 6)] == [(0, 5.0), (1, 106.0)]
    values = [fact.data["value"] for fact in run.facts("note")]
    assert values == VALUES
    assert [run.mode_step(fact.global_step)[1] for fact in run.facts("note")] == run.steps()


def test_tables_have_a_column_for_the_attempt(run):
    frame = run.statistics(role=Role.WEIGHT, fields=["max"]).to_pandas()
    assert frame["attempt"].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert frame["step"].tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert frame["max"].tolist() == [VALUES[step] for step in frame["step"]]
    assert run.statistics(merged=True, fields=["max"]).to_pandas()["max"].tolist() == frame["max"].tolist()
    assert run.statistics(mode=Mode.GLOBAL).to_pandas()["step"].tolist() == frame["step"].tolist()
    steps = run.sql("select attempt, count(*) as n from steps where mode = 'TRAIN' group by 1 order by 1").to_arrow()
    assert steps.to_pylist() == [{"attempt": 0, "n": 6}, {"attempt": 1, "n": 7}]


def test_one_attempt_alone_has_its_own_numbers(path):
    first = open_run(path, attempt=0)
    assert first.steps() == list(range(10))
    assert first.scalars("loss")[1].tolist() == [float(step) for step in range(10)]
    assert first.seams == ()
    assert "attempt 0" in repr(first)
    second = open_run(path, attempt=1)
    assert second.steps() == list(range(6, 13))
    with pytest.raises(
        StepNotRecordedError, match="TRAIN step 3 was not recorded \\(later steps exist\\); it has 6 to 12"
    ):
        second.step(3)


def test_a_range_of_the_course_is_opened_alone(path):
    part = open_run(path, steps=range(4, 8))
    assert part.steps() == [4, 5, 6, 7]
    assert part.scalars("loss")[1].tolist() == VALUES[4:8]
    assert len(part.steps(Mode.EVAL)) == 1
    assert part.scalars("loss", Mode.EVAL)[1].tolist() == [1005.0]
    assert part.statistics(fields=["max"]).to_pandas()["max"].tolist() == [4.0, 106.0]
    with pytest.raises(StepNotRecordedError, match="opened with steps 4 to 7 only"):
        part.step(9)
