"""A run of which little could be judged is not called healthy, and the verdict says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchglass.capture import FRAMEWORKS
from watchglass.diagnose.unjudged import why_unjudged
from watchglass.records import RuleStatus, Sighting, Status, facts
from watchglass.run import open_run
from watchglass.store import open_store, write_launch_end
from watchglass.testing import Step, build_run

DRIVING = [name for name, entry in FRAMEWORKS.items() if entry.drives]


def run_of(path: Path, steps: int, backwards: int = 0) -> str:
    reports = [facts.UnsteppedBackwards(backwards).to_fact("test")] if backwards else []
    return build_run(path, [Step(scalars={"loss": 1.0})] * steps, facts=reports)


def statuses(starved: int, quiet: int, unfit: int = 0) -> list[RuleStatus]:
    return [
        *(RuleStatus(f"Starved{n}", Status.STARVED, "no gradients") for n in range(starved)),
        *(RuleStatus(f"Quiet{n}", Status.NO_ISSUES_FOUND) for n in range(quiet)),
        *(RuleStatus(f"Unfit{n}", Status.NOT_APPLICABLE, "no layers") for n in range(unfit)),
    ]


@pytest.mark.parametrize(
    ("steps", "backwards", "why"),
    [
        (0, 360, "backward ran 360 times and no optimizer stepped"),
        (1, 360, "backward ran 360 times and no optimizer stepped"),
        (0, 1, "backward ran once and no optimizer stepped"),
        (20, 40, "backward ran 40 times and no optimizer stepped"),
        (20, 3, ""),
        (1, 0, "only one training step was recorded, too few to judge the run"),
        (2, 0, ""),
    ],
)
def test_loops_without_steps(run_path: Path, steps: int, backwards: int, why: str) -> None:
    assert why_unjudged(open_run(run_of(run_path, steps, backwards)), statuses(0, 9)) == why


@pytest.mark.parametrize("steps", [0, 1])
def test_steps_inside_one_function_explain_why_so_few_were_seen(run_path: Path, steps: int) -> None:
    reason = "the function train makes several steps in a loop of its own"
    facts_of_run = [facts.HiddenSteps(("train",)).to_fact(reason)]
    build_run(run_path, [Step(scalars={"loss": 1.0})] * steps, facts=facts_of_run)
    assert why_unjudged(open_run(run_path), statuses(0, 9)) == reason


@pytest.mark.parametrize(
    ("sighting", "why"),
    [
        (None, ""),
        (Sighting(), f": the script imported no framework that is watched ({', '.join(DRIVING)})"),
        (Sighting(("torch",)), ": torch was imported, and no backward was observed"),
        (Sighting(("torch",), 50), ": torch was imported, backward ran 50 times, and no update was observed"),
        (
            Sighting(("torch", "xgboost"), 1),
            ": torch and xgboost were imported, backward ran once, and no update was observed",
        ),
        (
            Sighting(("xgboost",)),
            ": xgboost was imported, which is not watched by itself: give callbacks=[watchglass.callback('xgboost')] "
            "to xgboost.train, xgboost.cv or the estimator",
        ),
        (
            Sighting(("torch", "xgboost")),
            ": torch and xgboost were imported, and no backward was observed; for xgboost, give "
            "callbacks=[watchglass.callback('xgboost')] to xgboost.train, xgboost.cv or the estimator",
        ),
    ],
)
def test_a_launch_without_steps_says_what_was_seen(run_path: Path, sighting: Sighting | None, why: str) -> None:
    store = open_store(run_of(run_path, 0))
    write_launch_end(store, 0, rank=0, world_size=1, exit_status=0, sighting=sighting)
    assert why_unjudged(open_run(run_path), statuses(0, 9)) == f"no training step was recorded{why}"


@pytest.mark.parametrize(
    ("starved", "quiet", "unfit", "begin"),
    [
        (4, 4, 1, "4 of 8 rules that apply had no data: Starved0 (no gradients), and 3 more"),
        (3, 4, 9, ""),
        (1, 0, 8, "the only rule that applies had no data: Starved0 (no gradients)"),
        (3, 0, 0, "all 3 rules that apply had no data: Starved0 (no gradients), and 2 more"),
        (0, 0, 9, ""),
    ],
)
def test_rules_without_data(run_path: Path, starved: int, quiet: int, unfit: int, begin: str) -> None:
    assert why_unjudged(open_run(run_of(run_path, 20)), statuses(starved, quiet, unfit)) == begin


def test_a_run_whose_loss_never_came_is_not_judged(run_path: Path) -> None:
    lossless = RuleStatus("LossNotDecreasing", Status.STARVED, "the scalar loss never came")
    why = why_unjudged(open_run(run_of(run_path, 20)), [*statuses(0, 40), lossless])
    assert why == "1 of 41 rules that apply had no data: LossNotDecreasing (the scalar loss never came)"


def test_a_run_without_evaluations_is_judged(run_path: Path) -> None:
    unvalidated = RuleStatus("Overfit", Status.STARVED, "the scalar loss of EVAL never came")
    assert why_unjudged(open_run(run_of(run_path, 20)), [*statuses(0, 40), unvalidated]) == ""
