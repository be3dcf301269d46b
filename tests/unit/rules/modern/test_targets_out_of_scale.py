"""TargetsOutOfScale: regression targets far larger than what the model gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from real_runs import RealRuns, Watch
from sketches_of import Batch, steps
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "TargetsOutOfScale"


def regression(mean: float, scale: float, learned: float = 0.0) -> Batch:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        targets = mean + scale * random.normal(size=(32, 1))
        return 0.3 * random.normal(size=(32, 1)) + min(1.0, step * learned) * targets, targets

    return made


class TestTargetsOutOfScale(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return steps(80, regression(150, 80), "mse_loss")

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # The second explains a twentieth of the variance in the end.
        return steps(30, regression(0, 100), "huber_loss"), steps(80, regression(0, 300, 0.0003), "mse_loss")

    def healthy(self) -> Sequence[Step]:
        return steps(80, regression(0, 1), "mse_loss")

    def test_targets_that_are_reached_in_time_are_no_fault(self, tmp_path: Any) -> None:
        assert not self.serious(self.build(tmp_path / "run", steps(80, regression(150, 80, 0.05), "mse_loss")))


class TestTargetsOutOfScaleInRealRuns(RealRuns):
    rule = "TargetsOutOfScale"
    cause = "targets_out_of_scale"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(70):
            inputs = torch.randn(32, 8)
            targets = inputs[:, :1] + inputs[:, 1:2]
            optimizer.zero_grad()
            F.mse_loss(model(inputs), 300 + 100 * targets if sick else targets).backward()
            optimizer.step()


class TestTargetsThatMakeARunDivergeInRealRuns(RealRuns):
    rule = "TargetsOutOfScale"
    cause = "targets_out_of_scale"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(70):
            inputs = torch.randn(32, 8)
            targets = inputs[:, :1] - inputs[:, 1:2]
            optimizer.zero_grad()
            F.mse_loss(model(inputs), 1000 * targets if sick else targets).backward()
            optimizer.step()


def test_a_learning_rate_far_above_usual_ones_explains_an_overflow(run_path: Path) -> None:
    def found(rate: float) -> int:
        made = steps(12, regression(0, 300, -1.0), "mse_loss", scalars={"learning_rate": rate})
        optimizer = {"optimizer": {"type": "SGD", "groups": [{"lr": rate}]}}
        made[0] = replace(made[0], facts={**made[0].facts, **optimizer})
        last = replace(made[-1], scalars={**made[-1].scalars, "loss": math.inf})
        findings = replay(build_run(run_path / str(rate), [*made[:-1], last]), [RuleSpec(RULE)]).findings
        return len(findings)

    assert (found(0.01), found(50.0)) == (1, 0)
