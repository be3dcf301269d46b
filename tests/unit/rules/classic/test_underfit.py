"""Underfit: a model of few units that has learned what it can."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from real_runs import RealRuns, Watch, update
from watchglass.records import ModuleKind
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def steps(loss: float, units: int) -> list[Step]:
    random = np.random.default_rng(0)
    weights = {"first.weight": random.normal(size=(units, 8)), "last.weight": random.normal(size=(4, units))}
    return [
        Step(scalars={"loss": loss + (1.4 - loss) * 0.95**n + 0.02 * random.normal()}, statistics=weights)
        for n in range(300)
    ]


class TestUnderfit(RuleSuite):
    rule = find_rule("Underfit")
    modules = {"first": ModuleKind.LINEAR, "last": ModuleKind.LINEAR}  # noqa: RUF012

    def sick(self) -> Sequence[Step]:
        return steps(0.9, units=2)

    def healthy(self) -> Sequence[Step]:
        # As high, but of a wide network: the task is noisy.
        return steps(0.9, units=32)


class TestUnderfitInRealRuns(RealRuns):
    rule = "Underfit"
    cause = "model_too_small"

    def train(self, watch: Watch, *, sick: bool) -> None:
        units = 1 if sick else 32
        model = nn.Sequential(nn.Linear(8, units), nn.Tanh(), nn.Linear(units, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(200):
            inputs = torch.randn(64, 8)
            update(model, optimizer, inputs, inputs[:, :4].argmax(1))
