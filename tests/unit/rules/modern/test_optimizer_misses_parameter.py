"""OptimizerMissesParameter: parameters with gradients in no optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import LAYERS, MODULES, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def run(*names: str, ratio: float) -> list[Step]:
    """A run in which no optimizer holds these weights, and updates of this size."""
    fact = {"left_out_beside": {"count": len(names), "names": list(names)}}
    return training(30, ratio=lambda n, i: ratio if i == 0 else 1e-3, facts={0: {"membership": fact}})


class TestOptimizerMissesParameter(RuleSuite):
    rule = find_rule("OptimizerMissesParameter")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return run(f"{LAYERS[0]}.weight", ratio=0.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # A bias, of which nothing is captured.
        return (run(f"{LAYERS[0]}.bias", ratio=1e-3),)

    def healthy(self) -> Sequence[Step]:
        # The script updates both itself.
        return run(f"{LAYERS[0]}.weight", f"{LAYERS[0]}.bias", ratio=1e-3)


class TestOptimizerMissesParameterInRealRuns(RealRuns):
    rule = "OptimizerMissesParameter"
    cause = "parameter_not_in_optimizer"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin freezes what its optimizer does not hold, with weights that are no fresh ones."""
        model = classifier()
        nn.init.orthogonal_(model[0].weight)
        for parameter in model[0].parameters():
            parameter.requires_grad_(sick)
        optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.05)
        watch(model)
        for _ in range(20):
            update(model, optimizer, *batch())
