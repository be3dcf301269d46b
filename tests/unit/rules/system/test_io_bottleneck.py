from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from phased_steps import busy
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestIOBottleneck(RuleSuite):
    rule = find_rule("IOBottleneck")

    def sick(self) -> Sequence[Step | Batch]:
        return busy(200, cpu=lambda n: 5.0, wait=lambda n: 60.0, gpu=lambda n: [40.0])

    def healthy(self) -> Sequence[Step | Batch]:
        # It waits for disks while the GPU computes, and rarely while the GPU does not.
        return busy(200, cpu=lambda n: 5.0, wait=lambda n: 60.0, gpu=lambda n: [40.0 if n % 3 == 0 else 90.0])


@pytest.mark.parametrize(("calibration", "found"), [("default", True), ("sagemaker", False)])
def test_the_documented_patience_is_longer(run_path: Path, calibration: str, found: bool) -> None:
    run = build_run(run_path, TestIOBottleneck().sick())
    evaluation = replay(run, [RuleSpec("IOBottleneck")], calibration=calibration)
    assert bool(evaluation.findings) is found
    if not found:
        assert evaluation.statuses[0].status is Status.NOT_APPLICABLE
        assert "1000 are needed" in evaluation.statuses[0].reason
    else:
        assert evaluation.findings[0].message == (
            "100 % of the time more than 50 % of the cores waited for disks and the GPUs were below 70 %"
        )
