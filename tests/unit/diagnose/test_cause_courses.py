"""How likely a cause was at which step follows from the findings that were known by then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.diagnose import cause_courses, diagnose, verdict
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.run import open_run
from watchglass.testing import Step, build_run

STEPS = [Step(scalars={"loss": 1.0})] * 60


def finding(number: int, step: int, *symptoms: str, mode: Mode = Mode.TRAIN, at: int | None = None) -> Finding:
    return Finding(
        f"{number:012x}", f"Rule{number}", Severity.WARNING, step, 59, 60 - step, mode, "worker_0", (), 3.0, 1.0,
        "found",
        global_step=step if at is None else at, evidence={"symptoms": list(symptoms)},
    )  # fmt: skip


def test_the_score_of_a_cause_grows_with_each_finding_that_supports_it(run_path: Path) -> None:
    growing = [finding(1, 10, "gradient_growth"), finding(2, 30, "loss_spike"), finding(3, 50, "loss_rising")]
    run = open_run(build_run(run_path, STEPS, journal=growing))
    judged = verdict(run)
    courses = {each.title: each for each in cause_courses(run, judged)}
    likeliest = judged.diagnoses[0].causes[0]
    found = courses[likeliest.cause.title]
    assert found.steps == (10, 30, 50)
    expected = []
    for known in (1, 2, 3):
        ranked = [each for diagnosis in diagnose(growing[:known]) for each in diagnosis.causes]
        expected.append(max((each.score for each in ranked if each.cause == likeliest.cause), default=0.0))
    assert found.scores == tuple(expected)
    assert found.scores[0] < found.scores[-1] == likeliest.score


def test_what_rules_have_not_found_counts_at_all_steps_and_evaluations_at_the_step_before(run_path: Path) -> None:
    evaluated = [*STEPS, Step(scalars={"loss": 2.0}, mode=Mode.EVAL)]
    late = finding(1, 0, "gradient_growth", mode=Mode.EVAL, at=60)
    journal = [finding(2, 20, "gradient_growth"), late, RuleStatus("LearningRateZero", Status.NO_ISSUES_FOUND)]
    run = open_run(build_run(run_path, evaluated, journal=journal))
    judged = verdict(run)
    courses = cause_courses(run, judged)
    assert {each.steps for each in courses} == {(20, 59)}
    # The same symptom once more changes no score.
    assert all(first == last for first, last in (each.scores for each in courses))


def test_many_findings_are_diagnosed_at_some_of_their_steps(run_path: Path) -> None:
    first = finding(1, 0, "gradient_growth")
    journal = [replace(first, id=f"{n:012x}", step=n % 60, global_step=n % 60) for n in range(2000)]
    run = open_run(build_run(run_path, STEPS, journal=journal))
    courses = cause_courses(run, verdict(run))
    assert {each.steps[0] for each in courses} == {0}
    assert {each.steps[-1] for each in courses} == {59}
    assert {len(each.steps) for each in courses} == {10}


@pytest.mark.parametrize("steps", [STEPS, []])
def test_a_run_without_findings_or_steps_has_none(run_path: Path, steps: list[Step]) -> None:
    run = open_run(build_run(run_path, steps))
    assert cause_courses(run, verdict(run)) == ()
