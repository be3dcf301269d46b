"""PenaltyDominates: weight decay or a penalty that outweighs the data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import constant_loss, sampled
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestPenaltyDominates(RuleSuite):
    rule = find_rule("PenaltyDominates")

    def sick(self) -> Sequence[Step]:
        return sampled(
            80, lambda n: {"cosine_weight": -0.98, "decay": 8.0, "weight": 0.1 * 0.97**n}, loss=constant_loss(2.3)
        )

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # A penalty in the loss: the total falls, and what the data say does not.
        steps = sampled(80, lambda n: {"cosine_weight": -0.85, "gradient_weight": 0.95, "weight": 0.1 * 0.97**n})
        # Decay and updates are in balance soon after the start.
        decoupled = {"group": {"lr": 0.003, "weight_decay": 30.0, "decoupled": True}, "decay": None}
        balanced = sampled(80, lambda n: {**decoupled, "weight": 0.1 if n < 8 else 0.02}, loss=constant_loss(2.3))
        return [[_with(step, 2.3) for step in steps], balanced]

    def healthy(self) -> Sequence[Step]:
        # Decay takes over once the model has converged.
        return sampled(
            200,
            lambda n: {"cosine_weight": -0.99 if n > 100 else -0.05, "decay": 9.0 if n > 100 else 0.1,
                       "weight": 0.1 * 0.99**n},
        )  # fmt: skip


def _with(step: Step, data_loss: float) -> Step:
    return Step(scalars={**step.scalars, "loss/cross_entropy": data_loss}, facts=step.facts)


class TestPenaltyDominatesInRealRuns(RealRuns):
    rule = "PenaltyDominates"
    cause = "penalty_dominates"

    def train(self, watch: Watch, *, sick: bool) -> None:
        decay = 2.0 if sick else 1e-3
        fit(classifier(), watch, rate=0.05, optimizer=lambda p, lr: torch.optim.SGD(p, lr, weight_decay=decay))


class TestDecayWithMomentumInRealRuns(RealRuns):
    rule = "PenaltyDominates"
    cause = "penalty_dominates"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Momentum carries the weights beyond zero, so that updates are as large as they are."""
        decay = 0.6 if sick else 1e-4
        optimizer = partial(torch.optim.SGD, momentum=0.9, weight_decay=decay)
        fit(classifier(), watch, rate=0.1, optimizer=lambda p, lr: optimizer(p, lr))
