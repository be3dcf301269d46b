"""DeadExpert: experts that get no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mixtures import Mixture
from real_runs import RealRuns, Watch, fit
from synthetic_steps import ALWAYS, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def used(*experts: bool, tokens: int = 128, steps: int = 80) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        arrays["block.gate.router_load"] = np.array(experts) / sum(experts)
        arrays["block.gate.router_logits"] = np.zeros((tokens, len(experts)))

    made = training(steps, change=change, due=ALWAYS)
    unused = {"block.gate.router_load": [not each for each in experts]}
    return [Step(step.scalars, step.statistics, {**step.units, **unused}) for step in made]


class TestDeadExpert(RuleSuite):
    rule = find_rule("DeadExpert")

    def sick(self) -> Sequence[Step]:
        return used(True, False, True, False)

    def healthy(self) -> Sequence[Step]:
        return [*used(True, False, True, False, steps=40), *used(True, True, True, True, steps=40)]


@pytest.mark.parametrize("rule", ["DeadExpert", "MoEImbalance"])
@pytest.mark.parametrize(("steps", "status"), [(7, Status.NOT_APPLICABLE), (8, Status.NO_ISSUES_FOUND)])
def test_too_few_captures_are_no_judgement(run_path: Path, rule: str, steps: int, status: Status) -> None:
    run = build_run(run_path, used(True, True, steps=steps))
    (found,) = replay(run, [RuleSpec(rule)]).statuses
    assert found.status is status
    assert ("captured at 7 steps; 8 are needed" in found.reason) is (status is Status.NOT_APPLICABLE)


class TestDeadExpertInRealRuns(RealRuns):
    rule = "DeadExpert"
    cause = "experts_unbalanced"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = Mixture()
        if sick:
            with torch.no_grad():
                model.gate.bias[2:] = -50.0
        fit(nn.Sequential(model, nn.Linear(16, 4)), watch, rate=0.01, steps=60)


class Dense(nn.Module):
    """All experts run, and a sharp softmax of shares that are no module's output mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(16, 3))
        self.expert_a, self.expert_b, self.expert_c = (nn.Linear(16, 16) for _ in range(3))
        self.bias = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = (x @ self.shares + self.bias).softmax(-1)
        experts = self.expert_a(x), self.expert_b(x), self.expert_c(x)
        return x + sum(share[:, None] * expert for share, expert in zip(shares.unbind(-1), experts, strict=True))


class TestExpertsWithoutGradientInRealRuns(RealRuns):
    rule = "DeadExpert"
    cause = "experts_unbalanced"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = Dense()
        model.bias[0] = 40.0 * sick
        fit(nn.Sequential(model, nn.Linear(16, 4)), watch, rate=0.05, steps=60)
