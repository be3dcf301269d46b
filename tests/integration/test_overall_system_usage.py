"""OverallSystemUsage in numbers, and in a run under a launcher; its twin is not sampled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from launched_runs import LaunchedRuns
from phased_steps import busy
from synthetic_steps import modules, of_model, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestOverallSystemUsage(RuleSuite):
    rule = find_rule("OverallSystemUsage")
    severity = Severity.INFO

    def sick(self) -> Sequence[Step | Batch]:
        return busy(101, cpu=lambda n: float(n))

    def healthy(self) -> Sequence[Step | Batch]:
        return [Step(scalars={"loss": 1.0})]


def test_percentiles_are_within_half_a_percent(run_path: Path) -> None:
    evaluation = replay(build_run(run_path, busy(101, cpu=lambda n: float(n))), [RuleSpec("OverallSystemUsage")])
    (finding,) = evaluation.findings
    assert finding.severity is Severity.INFO
    assert evaluation.statuses[0].status is Status.NO_ISSUES_FOUND
    usage = finding.evidence["usage"]
    assert usage["cpu.utilization"] == pytest.approx({"min": 0, "p50": 50, "p95": 95, "p99": 99, "max": 100}, abs=0.5)
    assert "system: processor 50 % in the median, 95 % at the 95th percentile" in finding.message
    assert "memory.utilization" not in usage


def test_with_several_models_it_is_of_the_last_step_of_the_run(run_path: Path) -> None:
    """As of a cross-validation, whose first fold ends long before."""
    (_, samples) = busy(101)
    folds = [step for fold in (0, 1, 2) for step in (of_model(training(5), fold) if fold else training(5))]
    build_run(run_path, [*folds, samples], modules=modules(3))
    (finding,) = replay(run_path, [RuleSpec("OverallSystemUsage")]).findings
    assert (finding.step, finding.global_step, finding.model) == (14, 14, None)


@pytest.mark.parametrize(
    ("own", "cores", "words"),
    [
        (60.0, 2.0, "; other programs use 60 % of the processor on average, the run 30 %"),
        (60.0, 1.0, "; other programs use 30 % of the processor on average, the run 60 %"),
        (140.0, 2.0, ""),
        (None, 2.0, ""),
    ],
)
def test_what_other_programs_use_is_stated_where_it_is_much(
    run_path: Path, own: float | None, cores: float, words: str
) -> None:
    metrics: dict[str, list[float]] = {"cpu.utilization": [80.0, 100.0] * 10, "cpu.limit": [cores] * 20}
    if own is not None:
        metrics["processes.utilization"] = [own - 10, own + 10] * 10
    run = [Step(scalars={"loss": 1.0}, seconds=0.1), Batch(metrics=metrics, seconds=10)]
    (finding,) = replay(build_run(run_path, run), [RuleSpec("OverallSystemUsage")]).findings
    assert finding.message == f"system: processor 80 % in the median, 100 % at the 95th percentile{words}"


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestOverallSystemUsageInRealRuns(LaunchedRuns):
    rule = "OverallSystemUsage"
    severity = Severity.INFO
    reads_more = "no two runs have the same samples"
    twin_options = ("--no-profiler",)
    twin_status = Status.STARVED
    script = """
while sick and samples() < 6:
    update()
    time.sleep(0.01)
for step in range(20):
    update()
"""
