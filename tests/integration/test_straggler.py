"""Straggler in numbers, and in runs of two ranks of which one sleeps between its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from launched_runs import LaunchedRuns
from phased_steps import phased
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import PHASES, Finding, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def together(count: int, ranks: int = 3, **longer: float) -> list[Step]:
    """Steps of ranks, of which the last takes longer in the given phases, so that the others wait in the backward."""
    usual = {"data_s": 0.01, "forward_s": 0.03, "backward_s": 0.05, "other_s": 0.01}
    late = sum(longer.values())
    slow = {name: usual.get(name, 0.0) + longer.get(name, 0.0) for name in {**usual, **longer}}
    fast = {**usual, "backward_s": usual["backward_s"] + late}
    step = [replace(phased(**(slow if rank == ranks - 1 else fast)), workers=[rank]) for rank in range(ranks)]
    return step * count


def found(path: Path, run: Sequence[Step], workers: int = 3, **parameters: object) -> list[Finding]:
    return list(replay(build_run(path, run, workers=workers), [RuleSpec("Straggler", parameters)]).findings)


class TestStraggler(RuleSuite):
    rule = find_rule("Straggler")
    workers = 3

    def sick(self) -> Sequence[Step]:
        return together(80, other_s=0.05)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return together(80, data_s=0.05), together(80, forward_s=0.05), together(30, prepare_s=0.05)

    def healthy(self) -> Sequence[Step]:
        # Equal ranks, one that is late now and then, a little later than others, and several that are late in turns.
        now_and_then = [step for n in range(40) for step in together(1, other_s=0.5 * (n % 5 == 0))]
        turns = [replace(step, workers=[(step.workers[0] + n // 40) % 3]) for n in range(120)
                 for step in together(1, other_s=0.05) if step.workers]  # fmt: skip
        return [*together(80), *now_and_then, *together(80, data_s=0.005), *turns]


@pytest.mark.parametrize(
    ("phase", "where", "cause"),
    [("data_s", "waiting for data", "slow_loader_of_rank"),
     ("forward_s", "in the forward", "slow_rank"),
     ("other_s", "between an update and the next batch", "rank_with_more_to_do")],
)  # fmt: skip
def test_the_message_names_rank_phase_and_gain(run_path: Path, phase: str, where: str, cause: str) -> None:
    (finding,) = found(run_path, together(80, **{phase: 0.06}))
    assert finding.message == (
        f"2 other ranks wait for worker_2: it takes 60 ms longer in each training step of 160 ms, mostly {where}; if "
        + (
            "it were as fast as the others there, steps would be 1.6 times as fast, and faster still where its "
            "backward takes longer too"
            if phase == "forward_s"
            else "it were as fast as the others, steps would be at most 1.6 times as fast"
        )
    )
    assert finding.causes[0] == cause
    assert finding.evidence["gain"] == pytest.approx(0.16 / 0.1, rel=1e-5)


def test_a_rank_that_makes_its_batches_in_the_loop_need_not_do_anything_else(run_path: Path) -> None:
    """Without a loader, batches are made between two steps: that the rank logs or saves there is not known."""
    where = "mostly before the model is called (no DataLoader is read, so making batches is a part of it)"
    steps = together(80, other_s=0.06)
    (reading,) = found(run_path / "loader", steps)
    assert where not in reading.message
    without = [replace(step, rows={PHASES: [(0.0, *row[1:]) for row in step.rows[PHASES]]}) for step in steps]
    (finding,) = found(run_path / "none", without)
    assert where in finding.message
    assert finding.causes == ("slow_rank", "rank_with_more_to_do")


def test_the_other_of_two_ranks_is_named_where_both_wait_in_a_forward(run_path: Path) -> None:
    """Buffers are made equal as a forward begins, so the fast rank waits for the slow one there."""
    slow = replace(phased(data_s=0.06, forward_s=0.01, backward_s=0.03), workers=[0])
    fast = replace(phased(data_s=0.01, forward_s=0.06, backward_s=0.03), workers=[1])
    (finding,) = found(run_path, [slow, fast] * 80, workers=2)
    assert finding.message.startswith("the other rank waits for worker_0: it takes 50 ms longer in each training step")


@pytest.mark.parametrize(("later_s", "count"), [(0.01, 0), (0.0125, 1)])
def test_the_limit_is_a_share_of_the_step(run_path: Path, later_s: float, count: int) -> None:
    assert len(found(run_path, together(80, other_s=later_s))) == count


@pytest.mark.parametrize(
    ("steps", "workers", "reason"),
    [(together(23), 3, "the ranks have 23 training steps together; 24 are needed"), (together(24), 3, ""),
     ([phased(data_s=0.1)] * 30, 1, "one process trains, so no rank waits for another")],
)  # fmt: skip
def test_what_cannot_be_judged_is_not_applicable(run_path: Path, steps: list[Step], workers: int, reason: str) -> None:
    (status,) = replay(build_run(run_path, steps, workers=workers), [RuleSpec("Straggler")]).statuses
    assert status.reason == reason
    assert status.status is (Status.NOT_APPLICABLE if reason else Status.NO_ISSUES_FOUND)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestStragglerInRealRuns(LaunchedRuns):
    rule = "Straggler"
    # The slow rank takes nearly all of each step; ranks with equal work never differ by half of it.
    parameters: ClassVar = {"percent": 50.0}
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    cause = "slow_rank"  # without a loader, it may as well make its batches between two steps
    reads_more = "no two runs take the same times"
    script = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
for step in range(40):
    update()
    if not sick or dist.get_rank() == 1:
        time.sleep(0.05)
last = dist.barrier(async_op=True)
last.wait()
dist.destroy_process_group()
"""
