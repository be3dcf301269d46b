"""AllZero: tensors of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestAllZero(RuleSuite):
    rule = find_rule("AllZero")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(40, weight=lambda n, i: 0.0 if i == 1 else 0.1)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (training(40, change=lambda n, arrays: arrays["bend.output"].fill(0)),)

    def healthy(self) -> Sequence[Step]:
        # LoRA and residual branches begin at zero; a ReLU may be zero for a batch.
        return training(
            60,
            weight=lambda n, i: 0.0 if n < 2 and i == 1 else 0.1,
            change=lambda n, arrays: arrays["bend.output"].fill(0) if n % 5 == 0 else None,
        )


class TestAllZeroInRealRuns(RealRuns):
    rule = "AllZero"
    cause = "identical_initialization"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        with torch.no_grad():
            for layer in model if sick else ():
                if isinstance(layer, nn.Linear):
                    layer.weight.zero_()
                    layer.bias.zero_()
            if not sick:
                model[-1].weight.zero_()  # moves with the first update
        fit(model, watch)


def test_at_a_share_and_for_any_tensor(run_path: Path) -> None:
    """As SageMaker Debugger documents it: any tensor, at its first capture."""
    half = np.array([[0.0, 1.0]], np.float32)
    run = build_run(run_path, [Step({"loss": 1.0}, {"fc.bias": np.zeros(4, np.float32), "fc.weight": half})])
    found = replay(run, [RuleSpec("AllZero")], calibration="sagemaker").findings
    assert [(finding.tensors, finding.step) for finding in found] == [(("fc.bias",), 0)]
    found = replay(run, [RuleSpec("AllZero", {"threshold": 50, "name_regex": "weight"})], calibration="sagemaker")
    assert found.findings[0].message == "fc.weight is zero in at least 50 % of its values up to step 0"
