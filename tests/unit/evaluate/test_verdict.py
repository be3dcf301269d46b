"""The verdict joins what was found with how the run went."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchglass.evaluate import replay, verdict
from watchglass.records import Mode, Observation, Severity
from watchglass.run import open_run
from watchglass.testing import Step, build_run

HEALTHY = [Step(scalars={"loss": 1.0 / (n + 1)}) for n in range(10)]
PLAN = {"planned_steps": {"steps": 40, "source": "--planned-steps"}}


def test_a_healthy_run(run_path: Path) -> None:
    evaluation = [Step(scalars={"loss": 0.5, "accuracy": 0.75}, mode=Mode.EVAL, weight=w) for w in (10, 30)]
    found = verdict(open_run(build_run(run_path, [*HEALTHY, *evaluation], facts=PLAN)), replay(run_path))
    assert found.status == "no issues found"
    assert found.diagnoses == ()
    assert (found.train_steps, found.planned_train_steps, found.seconds_saved) == (10, 40, None)
    assert found.metrics == pytest.approx({"validation accuracy": 0.75, "validation loss": 0.5, "training loss": 0.1})
    assert found.capture == {"dropped_rows": 0, "steps": 12}


def test_a_stopped_run_says_what_was_saved(run_path: Path) -> None:
    sick = [Step(scalars={"loss": float("nan")})] * 10
    found = verdict(open_run(build_run(run_path, sick, facts=PLAN, status="stopped")), replay(run_path))
    assert found.status == "stopped"
    assert found.seconds_saved == pytest.approx(3.0)
    assert [finding.severity for finding in found.findings] == [Severity.ERROR]


def test_a_run_that_was_killed_after_the_commit_was_stopped(run_path: Path) -> None:
    journal = [Observation("stop_committed", 0), Observation("worker_stopped", 0, None, {"signal": "SIGTERM"})]
    assert verdict(open_run(build_run(run_path, HEALTHY, status=None, journal=journal))).status == "stopped"


@pytest.mark.parametrize(
    ("steps", "status", "expected"),
    [
        (HEALTHY, None, "incomplete"),
        ([], "finished", "no data"),
        ([Step(scalars={"loss": float("nan")})], "finished", "issues found"),
        ([Step(scalars={"loss": float("nan")})], None, "issues found"),
    ],
)
def test_statuses(run_path: Path, steps: list[Step], status: str | None, expected: str) -> None:
    assert verdict(open_run(build_run(run_path, steps, status=status)), replay(run_path)).status == expected
