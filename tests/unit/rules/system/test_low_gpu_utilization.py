from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phased_steps import busy
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestLowGPUUtilization(RuleSuite):
    rule = find_rule("LowGPUUtilization")

    def sick(self) -> Sequence[Step | Batch]:
        return busy(300, gpu=lambda n: [20.0 + n % 40])

    def also_sick(self) -> Sequence[Sequence[Step | Batch]]:
        return (busy(300, gpu=lambda n: [95.0 if n % 10 else 2.0]),)

    def healthy(self) -> Sequence[Step | Batch]:
        return busy(900, gpu=lambda n: [80.0 + n % 20])


def found(path: Path, run: Sequence[Step | Batch], **parameters: object) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("LowGPUUtilization", parameters)]).findings)


def test_each_gpu_is_judged(run_path: Path) -> None:
    run = busy(300, gpu=lambda n: [30.0, 99.0, 0.0 if n % 5 == 0 else 90.0])
    assert [(each.message, each.value) for each in found(run_path, run)] == [
        ("GPU 0 was below 30 % in 95 % of the last samples", 30.0),
        ("GPU 2 was below 0 % in 5 % of the last samples, and above 90 % in others", 0.0),
    ]


def test_only_the_last_samples_count(run_path: Path) -> None:
    run = busy(900, gpu=lambda n: [5.0 if n < 150 else 90.0])
    assert found(run_path, run, patience=700) == []
