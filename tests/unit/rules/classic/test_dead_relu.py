"""DeadRelu: units that are zero on every batch."""

from __future__ import annotations

from collections.abc import Sequence

from trainings import MODULES, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestDeadRelu(RuleSuite):
    rule = find_rule("DeadRelu")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(40, dead=lambda n, i: 0.95 if i == 1 else 0.0)

    def healthy(self) -> Sequence[Step]:
        return training(400, dead=lambda n, i: 0.4)
