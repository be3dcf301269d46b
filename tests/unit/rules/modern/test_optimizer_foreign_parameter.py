"""OptimizerForeignParameter: an optimizer of another model."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from real_runs import RealRuns, Watch, batch, classifier
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def run(with_gradient: int, left_out: int = 8) -> list[Step]:
    """A run whose optimizer has eight parameters of no model."""
    row = {"type": "SGD", "parameters": 8, "foreign": 8, "foreign_with_gradient": with_gradient, "foreign_shapes": []}
    fact = {"stepped": "optimizer", "optimizers": {"optimizer": row}, "left_out_with_gradient": left_out}
    return [Step(scalars={"loss": 1.0}, facts={"membership": fact})]


class TestOptimizerForeignParameter(RuleSuite):
    rule = find_rule("OptimizerForeignParameter")

    def sick(self) -> Sequence[Step]:
        return run(0)

    def healthy(self) -> Sequence[Step]:
        # Free tensors: an image, a prompt.
        return run(8)


class TestOptimizerForeignParameterInRealRuns(RealRuns):
    rule = "OptimizerForeignParameter"
    cause = "foreign_parameters"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The model is copied behind the optimizer; the twin also learns a tensor of no module."""
        model, scale = classifier(), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([*model.parameters(), *([] if sick else [scale])], lr=0.05)
        if sick:
            model = copy.deepcopy(model)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs) * (1.0 if sick else scale), labels).backward()
            optimizer.step()
