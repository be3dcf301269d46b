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


class TestLoadBalancing(RuleSuite):
    rule = find_rule("LoadBalancing")

    def sick(self) -> Sequence[Step | Batch]:
        return busy(200, gpu=lambda n: [95.0, 92.0, 30.0 if n % 4 else 95.0])

    def healthy(self) -> Sequence[Step | Batch]:
        return busy(200, gpu=lambda n: [60.0 + n % 40, 60.0 + (n + 20) % 40])


def test_the_gpus_that_differ_most_are_named(run_path: Path) -> None:
    (finding,) = replay(build_run(run_path, TestLoadBalancing().sick()), [RuleSpec("LoadBalancing")]).findings
    assert finding.value == pytest.approx(0.75, abs=0.01)
    assert "GPU 2" in finding.message
    assert "differs by 0.75 of at most 1" in finding.message


def test_one_gpu_is_not_compared(run_path: Path) -> None:
    run = build_run(run_path, busy(200, gpu=lambda n: [5.0, 95.0], processes=[1, 0]))
    (status,) = replay(run, [RuleSpec("LoadBalancing")]).statuses
    assert (status.status, status.reason) == (Status.NOT_APPLICABLE, "the run uses one GPU of each machine")
