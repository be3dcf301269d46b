"""CheckInputImages: images whose channels are not centred."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from real_runs import RealRuns, Watch, update
from sketches_of import given
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "CheckInputImages"


def images(mean: float, number: int = 10) -> list[Step]:
    random = np.random.default_rng(0)
    return [
        Step(scalars={"loss": 1.0}, facts=given(mean + 0.25 * random.normal(size=(64, 3, 4, 4)), into=("convolution",)))
        for _ in range(number)
    ]


class TestCheckInputImages(RuleSuite):
    rule = find_rule(RULE)
    parameters: ClassVar[dict[str, Any]] = {"relative": False, "threshold_mean": 0.5}

    def sick(self) -> Sequence[Step]:
        return images(0.9)

    def healthy(self) -> Sequence[Step]:
        return images(0.3)


@pytest.mark.parametrize(("mean", "found"), [(0.9, [Severity.INFO]), (0.3, [])])
def test_the_default_judges_in_standard_deviations(tmp_path: Path, mean: float, found: list[Severity]) -> None:
    run = build_run(tmp_path / "run", images(mean))
    assert [finding.severity for finding in replay(run, [RuleSpec(RULE)]).findings] == found


@pytest.mark.parametrize(("mean", "number", "fires"), [(0.3, 8, True), (0.3, 7, False), (0.1, 8, False)])
def test_calibration_sagemaker_judges_the_mean_of_five_hundred_images(
    tmp_path: Path, mean: float, number: int, fires: bool
) -> None:
    run = build_run(tmp_path / "run", images(mean, number))
    found = replay(run, [RuleSpec(RULE)], calibration="sagemaker").findings
    assert bool([one for one in found if one.severity is Severity.WARNING]) == fires


class TestCheckInputImagesInRealRuns(RealRuns):
    rule = "CheckInputImages"
    cause = "inputs_not_normalized"

    def rules(self) -> list[RuleSpec]:
        """With the parameters of calibration sagemaker: by default it is an info."""
        given = RuleSpec(self.rule, {"relative": "false", "threshold_mean": "0.2"})
        return [*[spec for spec in super().rules() if spec.name != self.rule], given]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(20):
            labels = torch.randint(0, 4, (32,))
            images = 0.25 * torch.randn(32, 3, 8, 8) + 0.2 * (labels - 1.5)[:, None, None, None]
            update(model, optimizer, images + 0.5 if sick else images, labels)
