"""Hang in numbers, and in a run that stands still, evaluated while it does; its journal replays to the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import watchglass
from real_runs import RealRuns, Watch
from synthetic_steps import training
from waiting import PATIENCE_S
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import find_rule
from watchglass.testing import Silence, Step, build_run
from watchglass.testing.rule_suite import RuleSuite

WAITS = ["/usr/lib/python3.11/threading.py", 331, "wait"]


def stack(*frames: list[Any]) -> dict[str, Any]:
    """Data of a fact ``stacks`` with a helper thread, and the thread that trains with these frames."""
    return {"step": 19, "seconds": 10.0, "threads": [
        {"name": "helper", "trains": False, "frames": [["helper.py", 1, "run"]]},
        {"name": "MainThread", "trains": True, "frames": list(frames)},
    ]}  # fmt: skip


def found(path: Path, run: Sequence[Step | Silence], workers: int = 1) -> list[Finding]:
    return list(replay(build_run(path, run, workers=workers), [RuleSpec("Hang")]).findings)


class TestHang(RuleSuite):
    rule = find_rule("Hang")

    def sick(self) -> Sequence[Step | Silence]:
        return [*training(20), Silence(seconds=100, stacks={0: stack(["/home/train.py", 7, "step"])})]

    def also_sick(self) -> Sequence[Sequence[Step | Silence]]:
        # Without a stack it waits longer.
        return ([*training(20), Silence(seconds=190)],)

    def healthy(self) -> Sequence[Step | Silence]:
        slow = Step(scalars={"loss": 1.0}, seconds=50.0)
        here = {0: stack(["/home/train.py", 9, "evaluate"])}
        return [*training(20), Silence(seconds=59, stacks=here), slow, Silence(seconds=90, stacks=here), slow]


def test_it_names_the_line_of_the_script_and_the_call_in_it(run_path: Path) -> None:
    here = stack(WAITS, ["/x/site-packages/torch/distributed/c10d.py", 5, "all_reduce"], ["/home/train.py", 7, "step"])
    (finding,) = found(run_path, [*training(20), Silence(seconds=100, stacks={0: here})])
    assert finding.message == (
        "worker_0 has completed no step for 63 s after step 19; it stands at train.py:7 in step, in wait of "
        "threading.py"
    )
    assert finding.evidence["stacks"]["worker_0"][0] == "/usr/lib/python3.11/threading.py:331 in wait"
    assert finding.causes == ("training_stalled",)


def test_the_rank_that_stands_elsewhere_comes_first(run_path: Path) -> None:
    together, alone = stack(WAITS, ["/home/train.py", 7, "step"]), stack(["/home/train.py", 30, "save"])
    silence = Silence(seconds=100, stacks={0: together, 1: alone, 2: together})
    (finding,) = found(run_path, [*training(20), silence], workers=3)
    assert finding.message == (
        "worker_0, worker_1, worker_2 have completed no step for 63 s after step 19; worker_1 at train.py:30 in save; "
        "worker_0, worker_2 at train.py:7 in step, in wait of threading.py"
    )


def test_ranks_at_one_line_are_named_together(run_path: Path) -> None:
    here = stack(["/home/train.py", 7, "step"])
    (finding,) = found(run_path, [*training(20), Silence(seconds=100, stacks={0: here, 1: here})], workers=2)
    assert finding.message.endswith("after step 19; all stand at train.py:7 in step")


@pytest.mark.parametrize(("seconds", "count"), [(119, 0), (190, 1)])
def test_without_a_stack_it_waits_twice_as_long(run_path: Path, seconds: float, count: int) -> None:
    findings = found(run_path, [*training(20), Silence(seconds=seconds)])
    assert len(findings) == count
    assert all(finding.message.endswith("; no stack could be read") for finding in findings)


@pytest.mark.parametrize(
    "data", ["text", {"threads": 3}, {"threads": [3, {"trains": True, "frames": [3, ["f", "x", 1]]}]}]
)
def test_stacks_of_other_programs_are_no_fault(run_path: Path, data: Any) -> None:
    (finding,) = found(run_path, [*training(20), Silence(seconds=190, stacks={0: data})])
    assert finding.message.endswith("no stack could be read")


#: Stands still, if it is given its run, until that is found.
SCRIPT = """
import sys, time, torch
from torch import nn
from watchglass import open_run
torch.set_num_threads(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def answer_that_never_comes():
    while not open_run(sys.argv[1]).journal.findings:
        time.sleep(0.1)

for step in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 25 and sys.argv[1:]:
        answer_that_never_comes()
"""
#: Longer than the ten seconds after which stacks are noted, and than a busy machine lets the healthy run wait.
THRESHOLD_S = 14.0


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestHangInRealRuns(RealRuns):
    rule = "Hang"
    cause = "training_stalled"
    reads_more = "it reads ticks, which any capture has"

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule, {"threshold": THRESHOLD_S, "factor": 0.0, "pauses": 0.0})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        script = run.parent / "train.py"
        script.write_text(SCRIPT)
        options = ["--run", str(run), "--rules", f"Hang:threshold={THRESHOLD_S:g},factor=0,pauses=0"]
        command = [sys.executable, "-m", "watchglass", "run", *options, str(script), *[str(run)] * sick]
        subprocess.run(command, check=True, timeout=PATIENCE_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
        live = watchglass.open_run(run).journal.findings
        assert bool(live) is sick, "found while it trained"
        assert all("in answer_that_never_comes" in finding.message for finding in live), live
