"""ConstantOutput: the output is the same for every input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, classifier, update
from sketches_of import Batch, steps
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "ConstantOutput"


def spread(of: Any, targets: float | None = None) -> Batch:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        outputs = 2 + of(step) * random.normal(size=(32, 4))
        return outputs, random.integers(0, 4, 32) if targets is None else targets * random.normal(size=(32, 4))

    return made


class TestConstantOutput(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return steps(40, spread(lambda step: 1e-5))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            steps(40, spread(lambda step: 1e-4, targets=1.0), "mse_loss"),
            # It collapses later on.
            steps(60, spread(lambda step: 1.0 if step < 40 else 1e-4, targets=1e-9), "mse_loss"),
        )

    def healthy(self) -> Sequence[Step]:
        # The last layer begins with zeros.
        return steps(40, spread(lambda step: 0.01 * step))

    def test_a_deep_model_may_begin_with_a_constant_output(self, tmp_path: Path) -> None:
        made = steps(60, spread(lambda step: 1e-5 if step < 40 else 0.1))
        assert not self.serious(self.build(tmp_path / "run", made))


class TestConstantOutputInRealRuns(RealRuns):
    rule = "ConstantOutput"
    cause = "dying_relu"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        if sick:
            # All units of the layer are below zero for every input.
            nn.init.constant_(model[4].bias, -20.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(40):
            update(model, optimizer, *batch())
