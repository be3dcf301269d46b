"""ExplodingGradient: gradients that grow while the loss does."""

from __future__ import annotations

from collections.abc import Sequence

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestExplodingGradient(RuleSuite):
    rule = find_rule("ExplodingGradient")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(
            80,
            loss=lambda n: 2.3 if n < 40 else 2.3 * 2.0 ** (n - 40),
            gradient=lambda n, i: 1e-2 * 3.0 ** max(0, n - 40),
        )

    def healthy(self) -> Sequence[Step]:
        # The gradient grows a hundredfold while the loss falls: a training run that leaves a plateau. And a spike.
        return training(
            200, gradient=lambda n, i: 1e-2 * (1 + n if n < 100 else 100) * (1000 if n == 150 else 1), noise=0.3
        )


class TestExplodingGradientInRealRuns(RealRuns):
    rule = "ExplodingGradient"
    cause = "learning_rate_too_high"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(), watch, rate=100.0 if sick else 0.05)
