"""MaxInitializationTime in numbers, and in a run that does not train until that is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from launched_runs import LaunchedRuns
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def begins(after_s: float) -> list[Step | Batch]:
    """A run that is sampled for 25 minutes, and whose first step ends after some seconds."""
    batches = [Batch(metrics={"cpu.utilization": [50.0] * 6}) for _ in range(25)]
    return [*batches, *[Step(scalars={"loss": 1.0}, seconds=s) for s in (after_s, 1.0, 1.0)]]


class TestMaxInitializationTime(RuleSuite):
    rule = find_rule("MaxInitializationTime")

    def sick(self) -> Sequence[Step | Batch]:
        return begins(1400)

    def healthy(self) -> Sequence[Step | Batch]:
        return begins(1100)


@pytest.mark.parametrize("calibration", ["default", "sagemaker"])
def test_it_reports_before_the_first_step(run_path: Path, calibration: str) -> None:
    rules = [RuleSpec("MaxInitializationTime")]
    (finding,) = replay(build_run(run_path, begins(1400)), rules, calibration=calibration).findings
    assert finding.step == -1
    assert finding.message == "no training step has ended 20 minutes after the start"


def test_without_samples_from_before_the_first_step_it_is_not_applicable(run_path: Path) -> None:
    run = build_run(run_path, [Step(scalars={"loss": 1.0}), *begins(10)[:2]])
    (status,) = replay(run, [RuleSpec("MaxInitializationTime")]).statuses
    assert (status.status, status.reason) == (
        Status.NOT_APPLICABLE, "there are no samples from before the first step",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestMaxInitializationTimeInRealRuns(LaunchedRuns):
    rule = "MaxInitializationTime"
    # A quarter of a minute: longer than a busy machine needs to start the healthy run.
    parameters: ClassVar = {"threshold": 0.25}
    cause = "slow_start"
    reads_more = "no two runs take the same times"
    script = """
while samples() < 6 or (sick and not found()):
    time.sleep(0.1)
for step in range(20):
    update()
"""
