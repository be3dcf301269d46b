"""UnusedParameter: parameters that never get a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from real_runs import RealRuns, Watch, fit
from synthetic_steps import LAYERS, MODULES, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def run(*names: str) -> list[Step]:
    """A run whose optimizer holds these parameters, which have no gradient."""
    fact = {"without_gradient": {"count": len(names), "names": list(names)}}
    steps = training(60, facts={0: {"membership": fact}})
    for step in steps:
        for name in names:
            step.statistics.pop(f"gradient/{name}", None)  # type: ignore[attr-defined]
    return steps


class TestUnusedParameter(RuleSuite):
    rule = find_rule("UnusedParameter")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return run(f"{LAYERS[0]}.weight")

    def healthy(self) -> Sequence[Step]:
        # A head of another task.
        return run(f"{LAYERS[2]}.weight")


class _CutOff(nn.Module):
    """A classifier whose first layer is cut off: always, or for the first steps only."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.first, self.last, self.steps = nn.Linear(16, 16), nn.Linear(16, 4), steps

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.steps -= 1
        hidden = self.first(inputs)
        return self.last(torch.relu(hidden.detach() if self.steps >= 0 else hidden))  # type: ignore[no-any-return]


class TestUnusedParameterInRealRuns(RealRuns):
    rule = "UnusedParameter"
    cause = "graph_detached"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(_CutOff(1000 if sick else 1), watch)
