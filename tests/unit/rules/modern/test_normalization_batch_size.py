"""NormalizationBatchSize: batch normalisation over one or two values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, update
from synthetic_steps import training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "NormalizationBatchSize"


def sizes(capture: int, few: int, of: int = 2) -> dict[str, Any]:
    found = [{"name": f"norm{n}.weight", "values": 2, "batch": 2} for n in range(few)]
    data = {"batch_normalizations": found, "batch_normalizations_count": of, "capture": capture, "complete": True}
    return {"forward_graph": data}


class TestNormalizationBatchSize(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return training(20, facts={0: sizes(1, 2), 3: sizes(4, 2)})

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (training(2, facts={0: sizes(1, 2)}),)

    def healthy(self) -> Sequence[Step]:
        # A first batch of two, and one branch of several that normalises a mean over positions.
        return training(20, facts={0: sizes(1, 4, of=4), 1: sizes(2, 0, of=4), 3: sizes(4, 1, of=4)})


class TestNormalizationBatchSizeInRealRuns(RealRuns):
    rule = "NormalizationBatchSize"
    cause = "batch_too_small_for_normalization"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(40):
            update(model, optimizer, *batch(2 if sick else 32))
