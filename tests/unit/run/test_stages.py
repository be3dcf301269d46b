"""Stages of a run: initialization, training and evaluation in turn, finalization."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from watchglass import Hook, Mode, open_run
from watchglass.records import PHASES
from watchglass.run import Run
from watchglass.store import Claim, process_age_ns
from watchglass.testing import Step, build_run


def steps(mode: Mode, number: int, seconds: float) -> list[Step]:
    row = [0.0, 0.0, 0.0, seconds, 0.0, 0.0, 0.0, 0.0]
    return [Step({"loss": 1.0}, mode=mode, rows={PHASES: [row]}, seconds=seconds) for _ in range(number)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    course = [*steps(Mode.TRAIN, 4, 0.5), *steps(Mode.EVAL, 2, 0.25), *steps(Mode.TRAIN, 3, 0.5)]
    return open_run(build_run(tmp_path / "run", course))


def test_steps_of_one_mode_in_a_row_are_a_stage(run: Run) -> None:
    stages = run.stages()
    own = [(stage.name, stage.steps, pytest.approx(stage.seconds)) for stage in stages.stages]
    assert own[:3] == [("training", 4, 2.0), ("evaluation", 2, 0.5), ("training", 3, 1.5)]
    assert stages.seconds["training"] == pytest.approx(3.5)
    assert stages.loop_s == pytest.approx(4.0)
    assert [stage.steps for stage in stages["training"]] == [4, 3]
    assert stages["prediction"] == ()
    assert stages.stages[0].end == stages.stages[1].begin


def test_an_evaluation_ends_when_the_model_returns(tmp_path: Path) -> None:
    # The next call of a model closes its step, after a wait for data that is part of the training step.
    evaluation = Step(
        {"loss": 1.0}, mode=Mode.EVAL, rows={PHASES: [[0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0]]}, seconds=0.75
    )
    training = Step({"loss": 1.0}, rows={PHASES: [[0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0]]}, seconds=0.5)
    stages = open_run(build_run(tmp_path / "run", [*steps(Mode.TRAIN, 2, 0.5), evaluation, training])).stages()
    assert stages.seconds == pytest.approx({"training": 2.0, "evaluation": 0.25, "finalization": 0.0})
    assert stages["evaluation"][0].end == stages["training"][1].begin
    assert stages.loop_s == pytest.approx(2.25)


def test_the_time_after_the_last_step_is_finalization(run: Run) -> None:
    last = run.stages().stages[-1]
    assert (last.name, last.steps, last.seconds) == ("finalization", 0, 0.0)


def test_a_data_frame_and_a_line(run: Run) -> None:
    frame = run.stages().to_pandas()
    assert list(frame.columns) == ["name", "attempt", "begin", "end", "steps", "seconds"]
    assert frame["steps"].tolist() == [4, 2, 3, 0]
    assert repr(run.stages()) == "Stages('worker_0': training 3.5 s, evaluation 0.5 s, finalization 0 s)"


def test_initialization_begins_with_the_process(tmp_path: Path) -> None:
    with Hook(tmp_path / "run") as hook, hook.step("train"):
        hook.save_scalar("loss", 1.0)
    run = open_run(tmp_path / "run")
    (joined,) = (event for event in run.worker().lifecycle if event["event"] == "joined")
    first, second, last = run.stages().stages
    assert [first.name, second.name, last.name] == ["initialization", "training", "finalization"]
    joined_at = (
        run.worker().tables.headers[0]["wall_ns"] + joined["time_ns"] - run.worker().tables.headers[0]["monotonic_ns"]
    )
    assert first.begin == np.datetime64(joined_at - joined["age_ns"], "ns")
    assert first.end == second.begin
    assert last.seconds > 0


def test_initialization_of_a_further_run_in_a_process_begins_with_its_hook(tmp_path: Path) -> None:
    """As in a notebook, whose process may have started hours ago."""
    for name in ("one", "two"):
        began = time.time()
        with Hook(tmp_path / name) as hook, hook.step("train"):
            hook.save_scalar("loss", 1.0)
    first = open_run(tmp_path / "two").stages().stages[0]
    assert first.name == "initialization"
    assert first.begin.astype("int64") / 1e9 > began - 0.05


@pytest.mark.parametrize("age_ns", [0, 1_000_000])
def test_a_process_that_trains_at_once_has_no_unknown_initialization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_ns: int
) -> None:
    """The start is known to 10 ms, so it may seem to be later than the first step of a forked process."""
    monkeypatch.setattr("watchglass.capture.process.worker_files.process_age_ns", lambda claim: age_ns)
    with Hook(tmp_path / "run") as hook:
        for _ in range(3):
            with hook.step("train"):
                hook.save_scalar("loss", 1.0)
                time.sleep(0.002)
    first, second, _ = open_run(tmp_path / "run").stages().stages
    assert (first.name, first.seconds) == ("initialization", 0.0)
    assert first.end == second.begin


def test_a_run_without_steps_has_no_stages(tmp_path: Path) -> None:
    run = open_run(build_run(tmp_path / "run", []))
    assert (len(run.stages()), run.stages().seconds, run.stages().loop_s) == (0, {}, 0.0)


def test_the_age_of_a_process_is_the_time_since_its_start() -> None:
    ticks = int(100 * (time.clock_gettime(time.CLOCK_BOOTTIME) - 5))
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    age_ns = process_age_ns(Claim(1, process_start=ticks))
    after_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert age_ns is not None
    assert before_ns <= ticks * 10_000_000 + age_ns <= after_ns
    assert process_age_ns(Claim(1)) is None
