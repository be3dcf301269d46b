"""StalledTraining in a run that stands still, evaluated while it does; its journal replays to the same findings."""

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
from watchglass.rules import find_rule
from watchglass.testing import Silence, Step
from watchglass.testing.rule_suite import RuleSuite, shown

#: Stands still, if it is given its run, until that is found.
SCRIPT = """
import sys, time, torch
from torch import nn
from watchglass import open_run
torch.set_num_threads(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    while step == 25 and sys.argv[1:] and not open_run(sys.argv[1]).journal.findings:
        time.sleep(0.1)
"""


#: Longer than a busy machine lets the healthy run wait between two steps.
THRESHOLD_S = 8.0


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestStalledTrainingInRealRuns(RealRuns):
    rule = "StalledTraining"
    cause = "training_stalled"
    reads_more = "it reads ticks, which any capture has"

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule, {"threshold": THRESHOLD_S, "factor": 0.0, "pauses": 0.0})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        script = run.parent / "train.py"
        script.write_text(SCRIPT)
        options = ["--run", str(run), "--rules", f"StalledTraining:threshold={THRESHOLD_S:g},factor=0,pauses=0"]
        command = [sys.executable, "-m", "watchglass", "run", *options, str(script), *[str(run)] * sick]
        subprocess.run(command, check=True, timeout=PATIENCE_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
        live = watchglass.open_run(run).journal.findings
        assert bool(live) is sick, "found while it trained"


class TestStalledTraining(RuleSuite):
    rule = find_rule("StalledTraining")

    def sick(self) -> Sequence[Step | Silence]:
        return [*training(20), Silence(seconds=100)]

    def also_sick(self) -> Sequence[Sequence[Step | Silence]]:
        return ([*training(20), Silence(seconds=90, living=[])],)

    def healthy(self) -> Sequence[Step | Silence]:
        # A step that takes long is no stall, nor is a pause twice as long as the longest one before.
        slow = Step(scalars={"loss": 1.0}, seconds=50.0)
        return [*training(20), Silence(seconds=59), slow, Silence(seconds=90), slow, *training(2)]


@pytest.mark.parametrize(("seconds", "found"), [(1700, 0), (1850, 1)])
def test_the_documented_threshold(tmp_path: Path, seconds: float, found: int) -> None:
    suite = TestStalledTraining()
    run = suite.build(tmp_path / "run", [*training(3), Silence(seconds=seconds)])
    rule = find_rule("StalledTraining")
    made = lambda: rule(**rule.calibrations["sagemaker"])  # noqa: E731
    assert bool(shown(made, run)[0]) is bool(found)


def test_a_run_before_its_first_step_is_not_judged(tmp_path: Path) -> None:
    suite = TestStalledTraining()
    assert shown(suite.make, suite.build(tmp_path / "run", [Silence(seconds=1e5)]))[0] == []
