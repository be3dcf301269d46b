"""UnchangedTensor: weights that never change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from real_runs import RealRuns, Watch, fit
from synthetic_steps import MODULES, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestUnchangedTensor(RuleSuite):
    rule = find_rule("UnchangedTensor")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(60, ratio=lambda n, i: 0.0 if i == 0 else 1e-3)

    def healthy(self) -> Sequence[Step]:
        # A layer that moved and then rests (dead, or the end of a schedule) is another matter.
        return training(600, ratio=lambda n, i: 0.0 if n > 5 and i == 0 else 1e-3)


class _CutOff(nn.Module):
    """A classifier whose first layer may get no gradient."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.first, self.last, self.cut = nn.Linear(16, 16), nn.Linear(16, 4), cut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        return self.last(torch.relu(hidden * 0.0 + 1.0 if self.cut else hidden))  # type: ignore[no-any-return]


class TestUnchangedTensorInRealRuns(RealRuns):
    rule = "UnchangedTensor"
    cause = "detached_parameters"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(_CutOff(cut=sick), watch)
