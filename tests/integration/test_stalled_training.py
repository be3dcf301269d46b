"""StalledTraining in a run that stands still, evaluated while it does; its journal replays to the same findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from launched_runs import LaunchedRuns
from silent_runs import SCRIPT, silent, with_pauses
from synthetic_steps import training
from watchglass.rules import find_rule
from watchglass.testing import Silence, Step
from watchglass.testing.rule_suite import RuleSuite, shown


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestStalledTrainingInRealRuns(LaunchedRuns):
    rule = "StalledTraining"
    parameters: ClassVar = {"threshold": 8.0, "factor": 0.0, "pauses": 0.0}
    cause = "training_stalled"
    reads_more = "it reads ticks, which any capture has"
    script = SCRIPT


class TestStalledTraining(RuleSuite):
    rule = find_rule("StalledTraining")

    def sick(self) -> Sequence[Step | Silence]:
        return silent(100)

    def also_sick(self) -> Sequence[Sequence[Step | Silence]]:
        return (silent(90, living=[]),)

    def healthy(self) -> Sequence[Step | Silence]:
        return with_pauses()


@pytest.mark.parametrize(("seconds", "found"), [(1700, 0), (1850, 1)])
def test_the_documented_threshold(tmp_path: Path, seconds: float, found: int) -> None:
    suite = TestStalledTraining()
    run = suite.build(tmp_path / "run", [*training(3), Silence(seconds=seconds)])
    rule = find_rule("StalledTraining")
    made = lambda: rule(**rule.calibrations["sagemaker"])  # noqa: E731
    assert bool(shown(made, run)[0]) is bool(found)


@pytest.mark.parametrize(
    ("compiled", "steps", "seconds", "found"),
    [(False, 8, 100, True), (True, 8, 100, False), (True, 8, 700, True), (True, 80, 100, True)],
)
def test_a_compiled_model_may_stand_still_for_longer_in_its_first_steps(
    tmp_path: Path, compiled: bool, steps: int, seconds: float, found: bool
) -> None:
    """Also after its first step: captured steps have a graph of their own."""
    suite = TestStalledTraining()
    known = {1: {"model": {"compiled": compiled}}}
    run = suite.build(tmp_path / "run", [*training(steps, facts=known), Silence(seconds=seconds)])
    assert bool(shown(suite.make, run)[0]) is found


def test_a_run_before_its_first_step_is_not_judged(tmp_path: Path) -> None:
    suite = TestStalledTraining()
    assert shown(suite.make, suite.build(tmp_path / "run", [Silence(seconds=1e5)]))[0] == []
