"""TreeDepth: boosted trees that are very deep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass
from boosting import boost
from real_runs import RealRuns, Watch
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Role
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestTreeDepthInRealRuns(RealRuns):
    rule = "TreeDepth"
    cause = "trees_too_deep"

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule)]

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        inputs = np.random.default_rng(0).normal(size=(2000, 4))
        boost(run, capture, inputs, 3, max_depth=0 if sick else 6, min_child_weight=0, reg_lambda=0)


class TestTreeDepth(RuleSuite):
    rule = find_rule("TreeDepth")

    def sick(self) -> Sequence[Step]:
        return trees(14, 15_000)

    def healthy(self) -> Sequence[Step]:
        return trees(6, 60)


def trees(depth: int, largest: int) -> list[Step]:
    values = {"trees/depth": np.array([depth], np.float32), "trees/largest_node": np.array([largest], np.float32)}
    return [Step({"loss": 0.9**n}, values) for n in range(20)]


@pytest.mark.parametrize(("node", "found"), [(16, []), (17, [0])])
def test_the_documented_depth_is_a_logarithm_of_the_node(run_path: Path, node: int, found: list[int]) -> None:
    run = build_run(run_path, trees(4, node)[:1])
    assert [f.step for f in replay(run, [RuleSpec("TreeDepth")], calibration="sagemaker").findings] == found


@pytest.mark.filterwarnings("ignore:.*`booster=gblinear` is deprecated:UserWarning")  # XGBoost 3.4
def test_depths_are_those_of_the_trees(tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(300, 4))
    boost(tmp_path / "run", {"collections": ["trees"], "save_interval": 1}, inputs, 4, max_depth=3, num_parallel_tree=2)
    run = watchglass.open_run(tmp_path / "run")
    assert run.tensor("trees/depth").steps() == [0, 1, 2, 3]
    assert run.statistics(role=Role.CUSTOM) is not None
    boost(tmp_path / "linear", {"collections": ["trees"], "save_interval": 1}, inputs, 2, booster="gblinear")
    assert "trees/depth" not in watchglass.open_run(tmp_path / "linear").tensor_names()
