"""LossNotDecreasing: a loss that stays, rises or diverges."""

from __future__ import annotations

from collections.abc import Sequence

from trainings import MODULES, constant_loss, training
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestLossNotDecreasing(RuleSuite):
    rule = find_rule("LossNotDecreasing")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(400, loss=constant_loss(2.3))

    def healthy(self) -> Sequence[Step]:
        # Falls, then stays at its noisy floor for long.
        return training(1000, noise=0.5, loss=lambda n: 2.3 * 0.98**n + 0.01)


class TestLossRises(TestLossNotDecreasing):
    def sick(self) -> Sequence[Step]:
        return training(600, loss=lambda n: 2.3 * 0.98**n if n < 200 else 1.5)


class TestLossDiverges(TestLossNotDecreasing):
    def sick(self) -> Sequence[Step]:
        return training(6, loss=lambda n: 2.3 * 10.0**n)


class TestLossDivergesForGood(TestLossNotDecreasing):
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(40, loss=lambda n: 2.3 if n < 10 else 100.0)
