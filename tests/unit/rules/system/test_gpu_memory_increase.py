from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from phased_steps import busy
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestGPUMemoryIncrease(RuleSuite):
    rule = find_rule("GPUMemoryIncrease")
    parameters: ClassVar[dict[str, Any]] = {"window": 100}

    def sick(self) -> Sequence[Step | Batch]:
        return busy(400, gpu=lambda n: [50.0], memory=lambda n: [10 + n / 6])

    def healthy(self) -> Sequence[Step | Batch]:
        return busy(400, gpu=lambda n: [50.0], memory=lambda n: [30 + 40 * (n % 20 > 10) + n / 50])


def test_the_rise_is_that_of_means(run_path: Path) -> None:
    run = busy(210, gpu=lambda n: [50.0, 50.0], memory=lambda n: [20.0, 20.0 if n < 100 else 31.0])
    specs = [RuleSpec("GPUMemoryIncrease", {"window": 100})]
    (finding,) = replay(build_run(run_path, run), specs).findings
    assert finding.message == "the used memory of GPU 1 rose from 20 to 31 % on average of 100 samples each"
    (status,) = replay(run_path, [RuleSpec("GPUMemoryIncrease")]).statuses
    assert status.status is Status.NOT_APPLICABLE
    assert "1000 are needed" in status.reason
