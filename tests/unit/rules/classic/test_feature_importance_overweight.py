"""FeatureImportanceOverweight: few features have all the importance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boosting import boost
from real_runs import RealRuns, Watch
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestFeatureImportanceOverweightInRealRuns(RealRuns):
    rule = "FeatureImportanceOverweight"
    cause = "few_features_dominate"

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule)]

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        inputs = np.random.default_rng(0).normal(size=(300, 12))
        if sick:
            inputs[:, 3:] = 0.0
        boost(run, capture, inputs)


class TestFeatureImportanceOverweight(RuleSuite):
    rule = find_rule("FeatureImportanceOverweight")

    def sick(self) -> Sequence[Step]:
        return importances(np.array([9, 9, 9, *[0.1] * 17]))

    def healthy(self) -> Sequence[Step]:
        return importances(np.linspace(1, 2, 20))


def importances(values: Any) -> list[Step]:
    name = "feature_importance/weight"
    values = np.asarray(values, np.float32)
    return [Step({"loss": 0.9**n}, {name: values}, raw={name: values}) for n in range(20)]


@pytest.mark.parametrize(("largest", "found"), [(5.3, [0]), (5.0, [])])
def test_the_documented_share_of_three_features(run_path: Path, largest: float, found: list[int]) -> None:
    run = build_run(run_path, importances([largest, 2, 1, 1, 1])[:1])
    spec = RuleSpec("FeatureImportanceOverweight")
    assert [f.step for f in replay(run, [spec], calibration="sagemaker").findings] == found
