"""The verdict of a launch, where the launcher knows more than the records of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.cli import run as run_verb
from watchglass.cli.run import as_the_script_ended
from watchglass.diagnose import verdict
from watchglass.launch import Job, LaunchOutcome
from watchglass.records import Failure, Verdict
from watchglass.run import open_run
from watchglass.view import headline


@pytest.fixture
def lost(healthy: Path) -> Verdict:
    return replace(verdict(open_run(healthy)), status="failed", failure=Failure("lost", worker="worker_0"))


def ended(status: int) -> LaunchOutcome:
    return LaunchOutcome(status, "run", 0, leads=True, evaluated=True, seconds=1.0)


def test_a_script_that_succeeded_has_not_failed_where_its_end_could_not_be_written(lost: Verdict) -> None:
    found = as_the_script_ended(lost, ended(0))
    assert found.failure is None
    assert headline(found) == "damaged: records are missing; no findings in the rest"


def test_other_failures_remain(lost: Verdict) -> None:
    assert as_the_script_ended(lost, ended(137)) is lost
    for failure in (Failure("lost", worker="worker_1"), Failure("exit", exit_status=3, worker="worker_0")):
        found = replace(lost, failure=failure)
        assert as_the_script_ended(found, ended(0)) is found


def test_a_run_without_steps_on_a_full_disk_is_not_said_to_be_unwatched(healthy: Path) -> None:
    empty = replace(verdict(open_run(healthy)), status="no data", unjudged="did the script train?")
    found = as_the_script_ended(empty, replace(ended(0), unwritten="the disk is full"))
    assert headline(found) == "no data: no training step could be written"
    assert as_the_script_ended(empty, ended(0)) is empty


def test_an_end_that_could_not_be_written_is_one_line_and_announces_no_report(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = replace(ended(0), run=str(healthy), evaluated=False, recorded=True, unwritten="the disk is full")
    monkeypatch.setattr("watchglass.launch.launch", lambda job, **_: outcome)
    after = run_verb._After(None, None, True, None, None, False, False)
    assert run_verb._launch(Job(("train.py",)), after) == 0
    assert capsys.readouterr().err.splitlines() == [
        "watchglass: warning: the end of the run could not be written: the disk is full; to recover its last steps "
        f"once it can be written: watchglass check {healthy}",
        f"watchglass: recorded; to get the verdict: watchglass check {healthy}",
    ]
