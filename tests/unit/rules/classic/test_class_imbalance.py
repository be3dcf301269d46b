"""ClassImbalance: some classes are much rarer than others, and the model neglects them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from sketches_of import Batch, judged, steps
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "ClassImbalance"


def rare(share: float, *, right: bool) -> Batch:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        labels = (random.random(64) < share).astype(int)
        chosen = labels if right else 0 * labels
        return 5.0 * np.eye(2)[chosen], labels

    return made


class TestClassImbalance(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return steps(40, rare(0.03, right=False))

    def healthy(self) -> Sequence[Step]:
        return steps(40, rare(0.03, right=True))

    def test_counts_of_sorted_batches_say_nothing_of_the_frequency_of_classes(self, tmp_path: Path) -> None:
        def mostly_the_first(step: int, random: np.random.Generator) -> tuple[Any, Any]:
            return 5.0 * np.eye(2)[np.zeros(64, int)], np.full(64, int(step == 30))

        assert not self.serious(self.build(tmp_path / "run", steps(40, mostly_the_first)))


class TestClassImbalanceInRealRuns(RealRuns):
    rule = "ClassImbalance"
    cause = "class_imbalance"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        for step in range(60):
            inputs, labels = batch(64)
            labels = (labels > 1).long()
            kept = (labels == 0) | (torch.rand(64) < 0.04) if sick else labels >= 0
            update(model, optimizer, inputs[kept], labels[kept])
            if step % 10 == 9:
                inputs, labels = batch(64)
                evaluate(model, inputs, (labels > 1).long())


def test_calibration_sagemaker_fires_on_ten_ones_among_a_thousand_labels(tmp_path: Path) -> None:
    labels = np.zeros(1000, int)
    labels[:10] = 1
    right = np.eye(2)[labels]
    for given, fires in ((labels, True), (np.arange(1000) % 2, False)):
        facts = judged("cross_entropy", 9 * (right if fires else np.eye(2)[given]), given)
        run = build_run(tmp_path / str(fires), [Step(scalars={"loss": 1.0}, facts=facts)])
        assert bool(replay(run, [RuleSpec(RULE)], calibration="sagemaker").findings) == fires
