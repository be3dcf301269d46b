"""Overtraining: a run that goes on although nothing improves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, evaluate, update
from synthetic_steps import MODULES, training, with_evaluations
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestOvertraining(RuleSuite):
    rule = find_rule("Overtraining")
    modules = MODULES
    severity = Severity.INFO

    def sick(self) -> Sequence[Step]:
        return with_evaluations(training(500, loss=lambda n: max(0.1, 2 - n / 20)), lambda n: max(0.2, 2 - n / 20))

    def healthy(self) -> Sequence[Step]:
        # The training loss still falls.
        return with_evaluations(training(500, loss=lambda n: 2 * 0.99**n), lambda n: max(0.2, 2 - n / 20))


class TestOvertrainingInRealRuns(RealRuns):
    rule = "Overtraining"
    severity = Severity.INFO

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A third of the labels are random: the losses have a floor. The run ends on the way to it, or long after."""
        model = nn.Sequential(nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        inputs, labels = batch(2048)
        labels[::3] = torch.randint(4, labels[::3].shape)
        watch(model)
        for step in range(112 if sick else 16):
            update(model, optimizer, inputs[:1024], labels[:1024])
            if step % 2:
                evaluate(model, inputs[1024:], labels[1024:])
