"""Confusion: classes that the model confuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from sketches_of import judged, steps
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "Confusion"


def taken(for_another: float) -> Any:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        labels = random.integers(0, 4, 64)
        chosen = np.where((labels == 3) & (random.random(64) < for_another), 1, labels)
        return 5.0 * np.eye(4)[chosen], labels

    return made


class TestConfusion(RuleSuite):
    rule = find_rule(RULE)
    parameters: ClassVar[dict[str, Any]] = {"each": True, "min_rows": 1}

    def sick(self) -> Sequence[Step]:
        return steps(20, taken(0.9))

    def healthy(self) -> Sequence[Step]:
        return steps(20, taken(0.1))


@pytest.mark.parametrize(("share", "found"), [(0.7, [Severity.INFO]), (0.2, [])])
def test_the_second_half_of_a_run_is_an_info_by_default(tmp_path: Path, share: float, found: list[Severity]) -> None:
    run = build_run(tmp_path / "run", steps(20, taken(share)))
    assert [finding.severity for finding in replay(run, [RuleSpec(RULE)]).findings] == found


@pytest.mark.parametrize(("wrong", "fires"), [(0, False), (1, True)])
def test_calibration_sagemaker_fires_on_one_wrong_prediction_in_ten(tmp_path: Path, wrong: int, fires: bool) -> None:
    labels = np.arange(10)
    chosen = labels.copy()
    chosen[:wrong] = 5
    run = build_run(tmp_path / "run", [Step(facts=judged("cross_entropy", 9.0 * np.eye(10)[chosen], labels))])
    found = replay(run, [RuleSpec(RULE)], calibration="sagemaker").findings
    assert bool([one for one in found if one.severity is Severity.WARNING]) == fires


class TestConfusionInRealRuns(RealRuns):
    rule = "Confusion"
    cause = "classes_overlap"

    def rules(self) -> list[RuleSpec]:
        """With the parameters of calibration sagemaker: by default it is an info."""
        given = RuleSpec(self.rule, {"each": "true", "min_rows": "4"})
        return [*[spec for spec in super().rules() if spec.name != self.rule], given]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        with torch.no_grad():
            # Set and not trained, since `watchglass run` watches every training step: four units have the first four
            # inputs, and four their negatives, so that the logits are these inputs.
            both = torch.cat([torch.eye(4), -torch.eye(4)])
            for layer, weight in ((model[0], both), (model[-1], 20 * both.T)):
                layer.weight.zero_()
                layer.bias.zero_()
                layer.weight[: weight.shape[0], : weight.shape[1]] = weight
        watch(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(6):
            inputs, labels = batch(128)
            update(model, optimizer, inputs, labels.clamp(max=2) if sick else labels)
