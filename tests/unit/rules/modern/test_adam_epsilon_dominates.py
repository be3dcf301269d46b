"""AdamEpsilonDominates: an epsilon that outweighs the second moment, or is nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import constant_loss, sampled
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

ADAM = {"below_epsilon": 0.0, "tiny_moment": 0.0, "zero_moment": 0.0, "group": 0}


class TestAdamEpsilonDominates(RuleSuite):
    rule = find_rule("AdamEpsilonDominates")

    def sick(self) -> Sequence[Step]:
        slow = {**ADAM, "below_epsilon": 0.99, "update": 1e-6}
        return sampled(80, lambda n: {"columns": 0, **slow, "group": 0} | _group(0.1), loss=constant_loss(2.3))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        nothing = {**ADAM, "zero_moment": 0.1} | _group(0.0)
        return [sampled(40, lambda n: nothing, loss=lambda n: 2.3 if n < 20 else float("nan"))]

    def healthy(self) -> Sequence[Step]:
        # Units that are dead have no second moment, and a converged layer a small one.
        return sampled(200, lambda n: {**ADAM, "zero_moment": 0.5, "below_epsilon": 0.9} | _group(1e-8))


def _group(eps: float) -> dict[str, object]:
    return {"group": {"eps": eps}}


class TestAdamEpsilonDominatesInRealRuns(RealRuns):
    rule = "AdamEpsilonDominates"
    cause = "epsilon_dominates"

    def train(self, watch: Watch, *, sick: bool) -> None:
        eps = 10.0 if sick else 1e-8
        fit(classifier(), watch, rate=1e-2, optimizer=lambda p, lr: torch.optim.Adam(p, lr, eps=eps), steps=48)


class TestDivisionByZeroInRealRuns(RealRuns):
    rule = "AdamEpsilonDominates"
    cause = "epsilon_dominates"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Some units never get a gradient."""
        model = classifier()
        nn.init.constant_(model[0].bias[:2], -50.0)  # type: ignore[index,arg-type]
        eps = 0.0 if sick else 1e-8
        fit(model, watch, rate=1e-2, optimizer=lambda p, lr: torch.optim.Adam(p, lr, eps=eps), steps=20)
