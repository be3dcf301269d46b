"""The launcher learns which exception ended a training run from the processes of the launch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from watchglass.capture.process import process_failure
from watchglass.config import environment
from watchglass.launch.failures import Failures
from watchglass.records import Failure, Sighting

MAIN, RANK, HELPER = "main", "rank", "helper"


def report(failures: Failures, process: str, message: str, *, trains: bool, wall_ns: int) -> None:
    failure = Failure("exception", "ValueError", message, wall_ns=wall_ns)
    line = {**failure.to_json(), "first": process == MAIN, "trains": trains}
    with Path(failures.path).open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_the_exception_of_the_process_that_was_started() -> None:
    failures = Failures()
    assert Path(failures.path).stat().st_mode & 0o077 == 0
    report(failures, MAIN, "bad batch", trains=True, wall_ns=1)
    found = failures.take(1)[0]
    assert found is not None
    assert (found.message, found.exit_status) == ("bad batch", 1)
    assert not os.path.lexists(failures.path)


def test_a_rank_is_the_reason_why_the_one_that_started_it_fails() -> None:
    failures = Failures()
    report(failures, MAIN, "ChildFailedError", trains=False, wall_ns=9)
    report(failures, RANK, "bad batch", trains=True, wall_ns=5)
    found = failures.take(1)[0]
    assert found is not None
    assert found.message == "bad batch"


def test_what_a_helper_process_died_of_says_nothing() -> None:
    failures = Failures()
    report(failures, HELPER, "no such option", trains=False, wall_ns=1)
    assert failures.take(3)[0] == Failure("exit", exit_status=3)


def test_an_exception_before_a_kill_is_not_what_killed() -> None:
    failures = Failures()
    report(failures, RANK, "bad batch", trains=True, wall_ns=1)
    assert failures.take(137)[0] == Failure("signal", exit_status=137)


def test_a_run_that_ended_well_has_no_failure() -> None:
    failures = Failures()
    report(failures, HELPER, "no such option", trains=True, wall_ns=1)
    assert failures.take(0)[0] is None
    assert not os.path.lexists(failures.path)


def test_what_is_no_report_is_left_out(tmp_path: Path) -> None:
    failures = Failures()
    Path(failures.path).write_text('{"kind": "exception"}\nnot json\n[1]\n' + "[" * 10_000)
    assert failures.take(1)[0] == Failure("exit", exit_status=1)


def test_a_pipe_or_a_link_in_its_place_is_not_read(tmp_path: Path) -> None:
    failures = Failures()
    os.unlink(failures.path)
    os.mkfifo(failures.path)
    assert failures.take(1)[0] == Failure("exit", exit_status=1)
    Path(tmp_path / "other").write_text("{}")
    os.symlink(tmp_path / "other", failures.path)
    assert failures.take(1)[0] == Failure("exit", exit_status=1)
    assert (tmp_path / "other").exists()


def test_what_processes_without_a_step_have_seen_is_added_up() -> None:
    failures = Failures()
    report(failures, RANK, "bad batch", trains=False, wall_ns=1)
    with Path(failures.path).open("a") as file:
        for names, backwards in ((["torch"], 50), (["xgboost", "torch"], 3), ("torch", 1), ([], -1)):
            file.write(json.dumps({"sighting": {"frameworks": names, "backwards": backwards}}) + "\n")
        file.write('[1]\n{"sighting": 3}\nbroken')
    assert failures.take(0) == (None, Sighting(("torch", "xgboost"), 53))


def test_nothing_is_known_of_a_launch_whose_processes_reported_nothing() -> None:
    failures = Failures()
    assert failures.take(0) == (None, None)
    assert not os.path.lexists(failures.path)


def test_a_process_that_outlives_the_launch_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = Failures()
    monkeypatch.setenv(environment.FAILURES, failures.variable)
    process_failure.report(ValueError("bad batch"), trains=True)
    assert failures.take(1)[0] is not None
    process_failure.report(ValueError("too late"), trains=True)
    assert not os.path.lexists(failures.path)
