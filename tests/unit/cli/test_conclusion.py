"""The verdict of a launch, where the launcher knows more than the records of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.cli.run import as_the_script_ended
from watchglass.diagnose import verdict
from watchglass.launch import LaunchOutcome
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
