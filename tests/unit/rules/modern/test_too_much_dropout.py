"""TooMuchDropout: dropout removes almost everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, update
from watchglass.records import Mode
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "TooMuchDropout"


def run(dropout: dict[str, float], training: float, evaluation: float) -> list[Step]:
    made = []
    for step in range(40):
        facts: dict[str, Any] = {"model": {"dropout": dropout}} if step == 1 else {}
        scalars = {"loss": training, "loss/cross_entropy": training}
        made.append(Step(scalars=scalars, facts=facts, weight=32.0))
        if step % 10 == 9:
            scalars = {"loss": evaluation, "loss/cross_entropy": evaluation}
            made.append(Step(scalars=scalars, mode=Mode.EVAL, weight=32.0))
    return made


class TestTooMuchDropout(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return run({"head.drop": 0.1, "body.drop": 0.95}, 1.0, 1.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (run({"drop": 0.8}, 1.0, 0.4),)

    def healthy(self) -> Sequence[Step]:
        return run({"drop": 0.5}, 1.0, 0.4)


class TestTooMuchDropoutInRealRuns(RealRuns):
    rule = "TooMuchDropout"
    cause = "dropout_too_high"

    def train(self, watch: Watch, *, sick: bool) -> None:
        dropout = nn.Dropout(0.97 if sick else 0.3)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), dropout, nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(24):
            update(model, optimizer, *batch())
