"""Overtraining: a run that goes on although nothing improves."""

from __future__ import annotations

from collections.abc import Sequence

from synthetic_steps import MODULES, training, with_evaluations
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestOvertraining(RuleSuite):
    rule = find_rule("Overtraining")
    modules = MODULES
    severity = Severity.INFO

    def sick(self) -> Sequence[Step]:
        return with_evaluations(training(500, loss=lambda n: max(0.1, 2 - n / 20)), lambda n: max(0.2, 2 - n / 20))

    def healthy(self) -> Sequence[Step]:
        # The training loss still falls.
        return with_evaluations(training(500, loss=lambda n: 2 * 0.99**n), lambda n: max(0.2, 2 - n / 20))
