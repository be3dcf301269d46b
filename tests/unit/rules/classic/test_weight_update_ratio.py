"""WeightUpdateRatio: updates that are too large or too small for their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, constant, constant_loss, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestWeightUpdateRatio(RuleSuite):
    rule = find_rule("WeightUpdateRatio")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(20, ratio=constant(30.0))

    def healthy(self) -> Sequence[Step]:
        # Warm-up from nothing, then a cosine schedule down to nothing; one layer starts from zero.
        def rate(step: int) -> float:
            return 0.1 * step / 100 if step < 100 else 0.05 * (1 + math.cos(math.pi * (step - 100) / 900))

        return training(1000, rate=rate, ratio=lambda n, i: 0.02 * rate(n) * (100 if i == 2 and n < 4 else 1))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (training(600, ratio=constant(1e-7), loss=constant_loss(2.3)),)


class TestWeightUpdateRatioInRealRuns(RealRuns):
    rule = "WeightUpdateRatio"
    cause = "learning_rate_too_high"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(), watch, rate=1e6 if sick else 0.05)
