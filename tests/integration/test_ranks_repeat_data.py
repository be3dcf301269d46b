"""RanksRepeatData: two ranks train on the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rank_faults
from rank_runs import MODULES, Make, TwoRanks, ones, pair
from real_runs import RealRuns
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestRanksRepeatData(RuleSuite):
    rule = find_rule("RanksRepeatData")
    workers = 2
    modules = MODULES

    def batches(self, number: Make) -> list[Step]:
        def facts(n: int, rank: int) -> dict[str, Any]:
            return {"batch": {"hashes": [f"{number(n, rank):016x}"], "varied": 300, "iterations": {}}}

        return pair(10, ones, ones, facts)

    def sick(self) -> Sequence[Step]:
        return self.batches(lambda n, rank: n)

    def healthy(self) -> Sequence[Step]:
        return self.batches(lambda n, rank: 2 * n + rank)

    def test_data_that_never_change_say_nothing(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path / "run", self.batches(lambda n, rank: 7))) == []


@pytest.mark.slow
class TestRanksRepeatDataInRealRuns(RealRuns):
    rule = "RanksRepeatData"
    cause = "ranks_see_same_data"
    training, fault = rank_faults.wrapped, "same_data"
    train, record = TwoRanks.train, TwoRanks.record
