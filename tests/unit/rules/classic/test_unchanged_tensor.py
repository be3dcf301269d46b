"""UnchangedTensor: weights that never change."""

from __future__ import annotations

from collections.abc import Sequence

from trainings import MODULES, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestUnchangedTensor(RuleSuite):
    rule = find_rule("UnchangedTensor")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(60, ratio=lambda n, i: 0.0 if i == 0 else 1e-3)

    def healthy(self) -> Sequence[Step]:
        # A layer that moved and then rests (dead, or the end of a schedule) is another matter.
        return training(600, ratio=lambda n, i: 0.0 if n > 5 and i == 0 else 1e-3)
