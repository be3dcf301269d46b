"""LossOscillating: a loss that goes up and down with every step."""

from __future__ import annotations

from collections.abc import Sequence

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
