"""TooManyDataWorkers in numbers, and in runs on a single core."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launched_runs import LaunchedRuns
from phased_steps import loader
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, RunBuilder, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def run(workers: int, cores: float, *, late: bool = False, streams: int = 1) -> list[Step | Batch]:
    """A run whose loader has some workers, on a machine whose cores are known before the first step, or after it."""
    names = ["system", *[f"system_{n}" for n in range(1, streams)]]
    machine = [Batch(metrics={"cpu.limit": [cores] * 4}, seconds=2, stream=name) for name in names]
    first = Step(scalars={"loss": 1.0}, facts=loader(workers), seconds=0.1 if late else 10.0)
    return [*machine, first, *[Step(scalars={"loss": 1.0}, seconds=2.0)] * 3]


def found(path: Path, given: Sequence[Step | Batch], calibration: str = "default", ranks: int = 1) -> list[Finding]:
    made = build_run(path, given, workers=ranks)
    return list(replay(made, [RuleSpec("TooManyDataWorkers")], calibration=calibration).findings)


class TestTooManyDataWorkers(RuleSuite):
    rule = find_rule("TooManyDataWorkers")

    def sick(self) -> Sequence[Step | Batch]:
        return run(16, 2)

    def also_sick(self) -> Sequence[Sequence[Step | Batch]]:
        return (run(16, 2, late=True),)

    def healthy(self) -> Sequence[Step | Batch]:
        return run(2, 2)


@pytest.mark.parametrize(("workers", "count"), [(0, 0), (5, 1), (6, 0), (16, 0), (17, 1)])
def test_the_documented_limits_are_on_both_sides(run_path: Path, workers: int, count: int) -> None:
    assert len(found(run_path, run(workers, 8), "sagemaker")) == count


def test_workers_of_all_ranks_count(run_path: Path) -> None:
    (finding,) = found(run_path, run(4, 8), ranks=3)
    assert finding.message == "3 ranks have 12 loader workers on 8 cores"
    assert found(run_path.with_name("alone"), run(4, 8)) == []


def test_a_process_that_trains_by_itself_is_judged(run_path: Path) -> None:
    with RunBuilder(run_path, alone=True) as builder:
        for each in run(16, 2):
            builder.batch(each) if isinstance(each, Batch) else builder.step(each)
        builder.leave()
    (finding,) = replay(run_path, [RuleSpec("TooManyDataWorkers")]).findings
    assert finding.message == "16 loader workers on 2 cores"


def test_without_a_step_after_the_first_sample_it_is_not_applicable(run_path: Path) -> None:
    (status,) = replay(build_run(run_path, run(16, 2, late=True)[:2]), [RuleSpec("TooManyDataWorkers")]).statuses
    assert (status.status, status.reason) == (
        Status.NOT_APPLICABLE, "no step came after the first sample of the number of cores",
    )  # fmt: skip


def test_ranks_on_several_machines_are_not_judged(run_path: Path) -> None:
    (status,) = replay(build_run(run_path, run(99, 2, streams=2)), [RuleSpec("TooManyDataWorkers")]).statuses
    assert status.status is Status.NOT_APPLICABLE
    assert "several machines" in status.reason


# Not with a preloaded interpreter: its processes have the cores with which it was started.
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")
class TestTooManyDataWorkersInRealRuns(LaunchedRuns):
    rule = "TooManyDataWorkers"
    cause = "loader_workers_do_not_fit"
    reads_more = "no two runs have the same samples"
    script = """
for _ in torch.utils.data.DataLoader(range(8), num_workers=2 if sick else 1):
    update()
while samples() < 6 or (sick and not found()):
    update()
    time.sleep(0.05)
"""

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        usable = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [min(usable)])
        try:
            super().record(run, capture, sick=sick)
        finally:
            os.sched_setaffinity(0, usable)
