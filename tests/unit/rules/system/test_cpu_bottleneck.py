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


class TestCPUBottleneck(RuleSuite):
    rule = find_rule("CPUBottleneck")

    def sick(self) -> Sequence[Step | Batch]:
        return busy(200, cpu=lambda n: 99.0, gpu=lambda n: [5.0] if n % 3 else [90.0])

    def healthy(self) -> Sequence[Step | Batch]:
        # The processor is busy while a GPU is, too; and the GPU waits while the processor is idle.
        return busy(200, cpu=lambda n: 99.0 if n % 2 else 10.0, gpu=lambda n: [95.0] if n % 2 else [0.0])


def status(path: Path, run: Sequence[Step | Batch], calibration: str = "default") -> tuple[Status, str]:
    (found,) = replay(build_run(path, run), [RuleSpec("CPUBottleneck")], calibration=calibration).statuses
    return found.status, found.reason


@pytest.mark.parametrize(("waits", "found"), [(100, Status.NO_ISSUES_FOUND), (102, Status.ISSUES_FOUND)])
def test_more_than_half_of_the_samples(run_path: Path, waits: int, found: Status) -> None:
    """With a patience of all samples, because the share of the first ones may be larger."""
    run = busy(200, cpu=lambda n: 91.0, gpu=lambda n: [9.0] if n >= 200 - waits else [11.0])
    assert status(run_path, run, "sagemaker")[0] is found


def test_only_the_gpus_of_the_run_count(run_path: Path) -> None:
    run = busy(200, cpu=lambda n: 99.0, gpu=lambda n: [95.0, 0.0, 0.0], processes=[1, 0, 0])
    assert status(run_path, run)[0] is Status.NO_ISSUES_FOUND
    unknown = busy(200, cpu=lambda n: 99.0, gpu=lambda n: [9.0, 0.0], processes=[float("nan")] * 2)
    assert status(run_path.with_name("unknown"), unknown)[0] is Status.ISSUES_FOUND


def test_without_a_gpu_it_is_not_applicable(run_path: Path) -> None:
    none = "there are no samples of a GPU that the run uses after its first training step"
    cpu_only = [Step(scalars={"loss": 1.0}), Batch(metrics={"cpu.utilization": [99.0] * 200}, seconds=100)]
    assert status(run_path, cpu_only) == (Status.NOT_APPLICABLE, none)
    other = busy(200, cpu=lambda n: 99.0, gpu=lambda n: [0.0], processes=[0])
    assert status(run_path.with_name("other"), other) == (Status.NOT_APPLICABLE, none)
    short = busy(50, cpu=lambda n: 99.0, gpu=lambda n: [0.0])
    assert status(run_path.with_name("short"), short) == (
        Status.NOT_APPLICABLE, "the run has 50 samples of GPUs after its first training step; 100 are needed",
    )  # fmt: skip


def test_samples_before_the_first_step_do_not_count(run_path: Path) -> None:
    begin = busy(300, cpu=lambda n: 99.0, gpu=lambda n: [0.0])[1:]
    run = [*begin, *busy(150, cpu=lambda n: 50.0, gpu=lambda n: [90.0], begins_s=160)]
    assert status(run_path, run)[0] is Status.NO_ISSUES_FOUND
