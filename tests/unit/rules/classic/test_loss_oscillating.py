"""LossOscillating: a loss that goes up and down with every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import MODULES, training
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestLossOscillating(RuleSuite):
    rule = find_rule("LossOscillating")
    modules = MODULES
    severity = Severity.INFO

    def sick(self) -> Sequence[Step]:
        return training(128, loss=lambda n: 2.0 + n % 2)

    def healthy(self) -> Sequence[Step]:
        # Independent batches, with much noise.
        return training(1000, noise=0.5, loss=lambda n: 2.3)


class TestLossOscillatingInRealRuns(RealRuns):
    rule = "LossOscillating"
    severity = Severity.INFO

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Clear and unclear samples come in turns, or shuffled."""
        model = classifier(depth=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        watch(model)
        for step in range(128):
            inputs, _ = batch(64)
            first, second = inputs[:, :4].topk(2, 1).values.unbind(1)
            inputs = inputs[(first - second).argsort()] if sick else inputs
            half = inputs[:32] if step % 2 else inputs[32:]
            update(model, optimizer, half, half[:, :4].argmax(1))
