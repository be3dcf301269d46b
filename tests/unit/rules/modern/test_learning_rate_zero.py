"""LearningRateZero: a learning rate of zero."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import lr_scheduler

from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestLearningRateZero(RuleSuite):
    rule = find_rule("LearningRateZero")

    def sick(self) -> Sequence[Step]:
        return training(30, rate=lambda n: 0.0)

    def healthy(self) -> Sequence[Step]:
        # A warm-up from zero, and a decay to zero that is over just before the end.
        return training(200, rate=lambda n: 0.1 * min(n / 20, 1.0) * max(0.0, 1 - n / 190))


class TestLearningRateZeroInRealRuns(RealRuns):
    rule = "LearningRateZero"
    cause = "learning_rate_zero"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin warms up from zero."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if sick else min(1.0, step / 10))
        for _ in range(40):
            update(model, optimizer, *batch())
            scheduler.step()


class TestLearningRateZeroOfTwoGroups(RealRuns):
    """Groups with and without weight decay, as scripts for language models have them."""

    rule = "LearningRateZero"
    cause = "learning_rate_zero"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin warms up from zero."""
        model = classifier()
        weights = [each for each in model.parameters() if each.dim() > 1]
        biases = [each for each in model.parameters() if each.dim() < 2]
        groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        watch(model)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if sick else min(1.0, step / 10))
        for _ in range(40):
            update(model, optimizer, *batch())
            scheduler.step()
