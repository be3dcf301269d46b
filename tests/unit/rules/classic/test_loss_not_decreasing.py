"""LossNotDecreasing: a loss that stays, rises or diverges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, constant_loss, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

DIVERGED_FOR_GOOD = training(40, loss=lambda n: 2.3 if n < 10 else 100.0)


class TestLossNotDecreasing(RuleSuite):
    rule = find_rule("LossNotDecreasing")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(400, loss=constant_loss(2.3))

    def healthy(self) -> Sequence[Step]:
        # Falls, then stays at its noisy floor for long.
        return training(1000, noise=0.5, loss=lambda n: 2.3 * 0.98**n + 0.01)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        rises = training(600, loss=lambda n: 2.3 * 0.98**n if n < 200 else 1.5)
        diverges = training(6, loss=lambda n: 2.3 * 10.0**n)
        return rises, diverges, DIVERGED_FOR_GOOD


class TestLossNotDecreasingInRealRuns(RealRuns):
    rule = "LossNotDecreasing"
    cause = "learning_rate_too_high"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(), watch, rate=10.0 if sick else 0.01, optimizer=torch.optim.Adam)


def test_a_loss_that_stays_diverged_is_an_error(run_path: Path) -> None:
    findings = replay(build_run(run_path, DIVERGED_FOR_GOOD), [RuleSpec("LossNotDecreasing")]).findings
    assert Severity.ERROR in {finding.severity for finding in findings}
