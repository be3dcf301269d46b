"""GradientsSummedOverRanks: two ranks use the sum of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rank_faults
from rank_runs import MODULES, TwoRanks, ones, pair
from real_runs import RealRuns
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestGradientsSummedOverRanks(RuleSuite):
    rule = find_rule("GradientsSummedOverRanks")
    workers = 2
    modules = MODULES

    def exchanged(self, factor: float) -> list[Step]:
        def facts(n: int, rank: int) -> dict[str, Any]:
            ranks_have = np.array([[1.0, 2.0 + n, 3.0, 4.0], [0.5, -1.0, 2.0, n]])
            used = factor * ranks_have.sum(0)
            samples = {"own": ranks_have[rank].tolist(), "used": used.tolist()}
            return {"rank_gradients": {"processes": 2, "parameter": "second.weight", **samples}}

        steps = pair(10, ones, ones, facts)
        return [Step(**{**vars(step), "scalars": {"loss": 1.0, "loss/cross_entropy": 1.0}}) for step in steps]

    def sick(self) -> Sequence[Step]:
        return self.exchanged(1.0)

    def healthy(self) -> Sequence[Step]:
        return self.exchanged(0.5)


@pytest.mark.slow
class TestGradientsSummedOverRanksInRealRuns(RealRuns):
    rule = "GradientsSummedOverRanks"
    cause = "gradients_summed_over_ranks"
    training, fault = rank_faults.by_hand, "sum"
    train, record = TwoRanks.train, TwoRanks.record
