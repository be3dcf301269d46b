from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from phased_steps import busy
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestBatchSize(RuleSuite):
    rule = find_rule("BatchSize")

    def sick(self) -> Sequence[Step | Batch]:
        return busy(200, cpu=lambda n: 30.0, gpu=lambda n: [20.0, 40.0], memory=lambda n: [10.0, 12.0])

    def healthy(self) -> Sequence[Step | Batch]:
        return busy(700, cpu=lambda n: 30.0, gpu=lambda n: [20.0, 40.0], memory=lambda n: [85.0, 88.0])


def found(path: Path, cpu: float, gpu: float, memory: float) -> int:
    run = busy(200, cpu=lambda n: cpu, gpu=lambda n: [gpu], memory=lambda n: [memory])
    return len(replay(build_run(path, run), [RuleSpec("BatchSize")]).findings)


@pytest.mark.parametrize("used", [(10.0, 10.0, 10.0), (90.0, 10.0, 10.0), (10.0, 90.0, 10.0), (10.0, 10.0, 90.0)])
def test_one_that_is_full_is_enough(run_path: Path, used: tuple[float, float, float]) -> None:
    assert found(run_path, *used) == (max(used) < 70)
