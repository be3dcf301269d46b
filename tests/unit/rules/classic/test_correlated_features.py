"""CorrelatedFeatures: input features that carry the same information."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from sketches_of import steps
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "CorrelatedFeatures"


def classes(step: int, random: np.random.Generator) -> tuple[Any, Any]:
    return random.normal(size=(32, 4)), random.integers(0, 4, 32)


def features(common: float) -> Any:
    return lambda step, random: common * random.normal(size=(32, 1)) + random.normal(size=(32, 12))


class TestCorrelatedFeatures(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return steps(8, classes, inputs=features(10.0))

    def healthy(self) -> Sequence[Step]:
        return steps(8, classes, inputs=features(1.0))


class TestCorrelatedFeaturesInRealRuns(RealRuns):
    rule = "CorrelatedFeatures"
    cause = "correlated_features"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        watch(model)
        for _ in range(24):
            inputs, labels = batch()
            common = torch.randn(32, 1)
            update(model, optimizer, (0.1 * inputs + common) if sick else inputs, labels)
