"""SilentDataCorruption: the loss or the gradient of one rank alone jumps repeatedly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import rank_faults
from rank_runs import TwoRanks
from real_runs import RealRuns
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestSilentDataCorruption(RuleSuite):
    rule = find_rule("SilentDataCorruption")
    workers = 3

    def losses(self, jumping: Sequence[int]) -> list[Step]:
        """At every tenth step from the 30th on, these ranks have ten times their loss."""
        return [
            Step(scalars={"loss": (10.0 if rank in jumping and n >= 30 and n % 10 == 0 else 1.0) + 0.01 * (n % 3)},
                 workers=[rank])
            for n in range(80)
            for rank in range(3)
        ]  # fmt: skip

    def sick(self) -> Sequence[Step]:
        return self.losses([1])

    def healthy(self) -> Sequence[Step]:
        return self.losses([0, 1, 2])


@pytest.mark.slow
class TestSilentDataCorruptionInRealRuns(RealRuns):
    rule = "SilentDataCorruption"
    cause = "silent_corruption"
    training, fault = rank_faults.wrapped, "wrong_values"
    train, record = TwoRanks.train, TwoRanks.record
