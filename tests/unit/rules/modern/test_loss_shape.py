"""LossShape: predictions and targets broadcast against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from real_runs import RealRuns, Watch
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def call(predictions: list[int], target: list[int], function: str = "mse_loss") -> dict[str, Any]:
    together = list(torch.broadcast_shapes(predictions, target))
    larger = torch.Size(together).numel() > max(torch.Size(predictions).numel(), torch.Size(target).numel())
    shapes = {"input": {"shape": predictions}, "target": {"shape": target}}
    return {"loss_call": {"function": function, "arguments": shapes, "broadcast": together if larger else None}}


class TestLossShape(RuleSuite):
    rule = find_rule("LossShape")
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(4, facts={0: call([32, 1], [32])})

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (training(4, facts={0: call([8, 1, 12, 12], [8, 12, 12])}),)

    def healthy(self) -> Sequence[Step]:
        return training(4, facts={0: call([32, 1], [32, 1]), 2: call([32, 3], [3])})


@pytest.mark.filterwarnings("ignore:Using a target size")
class TestLossShapeInRealRuns(RealRuns):
    rule = "LossShape"
    cause = "loss_broadcasts"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(12):
            inputs = torch.randn(32, 16)
            targets = inputs[:, 0]
            loss = F.mse_loss(model(inputs), targets if sick else targets[:, None])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("predictions", "target", "severity"),
    [
        ([32, 1], [32], Severity.ERROR),
        ([32, 1], [10], Severity.WARNING),
        # Pairs of quantiles, as in quantile regression for Q-learning.
        ([32, 1, 51], [32, 51, 1], Severity.INFO),
        ([1, 1], [1], None),
        ([4, 32], [32], None),
    ],
    ids=str,
)
def test_only_what_is_no_pairing_on_purpose_is_reported(
    run_path: Path, predictions: list[int], target: list[int], severity: Severity | None
) -> None:
    run = build_run(run_path, training(4, facts={0: call(predictions, target)}))
    found = replay(run, [RuleSpec("LossShape")]).findings
    assert [finding.severity for finding in found] == ([severity] if severity else [])
