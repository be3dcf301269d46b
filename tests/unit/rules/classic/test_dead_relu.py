"""DeadRelu: units that are zero on every batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, training
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


class TestDeadReluInRealRuns(RealRuns):
    rule = "DeadRelu"
    cause = "dying_relu"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        if sick:
            nn.init.constant_(model[2].bias, -100.0)
        fit(model, watch)
