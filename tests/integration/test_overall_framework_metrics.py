"""OverallFrameworkMetrics in numbers, and in a run under a launcher; its twin records no phases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from launched_runs import LaunchedRuns
from phased_steps import phased
from watchglass import open_run
from watchglass.config import RuleSpec
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Mode, Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite
from watchglass.view import capture_lines
from watchglass.view.usage import phases_sentence


class TestOverallFrameworkMetrics(RuleSuite):
    rule = find_rule("OverallFrameworkMetrics")
    severity = Severity.INFO

    def sick(self) -> Sequence[Step]:
        return [phased(forward_s=0.1)] * 20

    def healthy(self) -> Sequence[Step]:
        return [Step(scalars={"loss": 1.0})]


def test_phases_of_training_are_summarised_beside_evaluations(run_path: Path) -> None:
    run = [*[phased(data_s=0.02, forward_s=0.03, backward_s=0.05)] * 10, *[phased(Mode.EVAL, forward_s=0.05)] * 5]
    evaluation = replay(build_run(run_path, run), [RuleSpec("OverallFrameworkMetrics")])
    (finding,) = evaluation.findings
    assert evaluation.statuses[0].status is Status.NO_ISSUES_FOUND
    assert finding.message == (
        "training steps took 100 ms on average: data 20 %, forward 30 %, backward 50 %; "
        "evaluations took 20 % of the time of all steps"
    )


def test_steps_that_compile_are_counted_separately(run_path: Path) -> None:
    run = [phased(forward_s=40.0), *[phased(forward_s=0.03, backward_s=0.07)] * 20, phased(forward_s=5.0)]
    (finding,) = replay(build_run(run_path, run), [RuleSpec("OverallFrameworkMetrics")]).findings
    assert finding.message == (
        "training steps took 100 ms on average: forward 30 %, backward 70 %; 2 far longer steps took 45 s of 47 s"
    )


def test_the_profiler_report_and_the_list_of_a_run_state_the_same(run_path: Path) -> None:
    # Between eight and sixteen times the median: longer by one way to count, and not by another.
    durations = [*[0.26] * 40, 2.5, 3.9, 2.9, 14.0]
    # The model is compiled in the long ones, and waits as long for data as the others.
    path = build_run(run_path, [phased(data_s=0.0315, forward_s=each - 0.0315) for each in durations])
    (finding,) = replay(path, [RuleSpec("OverallFrameworkMetrics")]).findings
    sentence = phases_sentence(open_run(path).phases())
    assert finding.message.startswith("training steps took 315 ms on average: data 10 %")
    assert sentence.startswith("training step 315 ms on average: 10 % waits for data")
    assert "10 % of a typical training step is a wait for data" in capture_lines(verdict(open_run(path)).capture)
    assert finding.message.endswith("3 far longer steps took 20.8 s of 33.7 s")
    assert sentence.endswith("3 far longer steps took 21 s of 34 s")


@pytest.mark.parametrize(("longer", "mean"), [(2, "100 ms"), (4, "800 ms")])
def test_what_is_frequent_is_typical(run_path: Path, longer: int, mean: str) -> None:
    run = [*[phased(forward_s=5.0)] * longer, *[phased(forward_s=0.1)] * (28 - longer)]
    (finding,) = replay(build_run(run_path, run), [RuleSpec("OverallFrameworkMetrics")]).findings
    assert finding.message.startswith(f"training steps took {mean} on average")


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestOverallFrameworkMetricsInRealRuns(LaunchedRuns):
    rule = "OverallFrameworkMetrics"
    severity = Severity.INFO
    reads_more = "no two runs take the same times"
    twin_options = ("--no-profiler",)
    twin_status = Status.STARVED
    script = """
for step in range(40):
    update()
"""
