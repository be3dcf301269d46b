"""TooSlow: weights that hardly move."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import constant_loss, sampled
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestTooSlow(RuleSuite):
    rule = find_rule("TooSlow")

    def sick(self) -> Sequence[Step]:
        straight = {"cosine_moved": 0.97, "update": 1e-6, "moved": 8e-6}
        return sampled(120, lambda n: straight, loss=constant_loss(2.3))

    def healthy(self) -> Sequence[Step]:
        # As straight, and the loss falls.
        return sampled(200, lambda n: {"cosine_moved": 0.97, "update": 1e-5, "moved": 8e-5})


class TestTooSlowInRealRuns(RealRuns):
    rule = "TooSlow"
    cause = "learning_rate_too_low"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(), watch, rate=1e-6 if sick else 1e-2, optimizer=torch.optim.Adam, steps=60)
