"""RouterLogits: logits of a router that half precision does not resolve."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from mixtures import Mixture
from real_runs import RealRuns, Watch, batch, update
from synthetic_steps import ALWAYS, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def logits(largest: Callable[[int], float], steps: int = 40) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        arrays["block.gate.router_logits"] = np.linspace(-largest(step), largest(step) / 2, 64)
        arrays["block.gate.router_load"] = np.full(8, 1 / 8)

    return training(steps, change=change, due=ALWAYS)


class TestRouterLogits(RuleSuite):
    rule = find_rule("RouterLogits")

    def sick(self) -> Sequence[Step]:
        return logits(lambda step: 2.0 * 1.2**step)

    def healthy(self) -> Sequence[Step]:
        # One large batch, and moderate growth.
        return logits(lambda step: 500.0 if step == 9 else 2.0 + step)


class TestRouterLogitsInRealRuns(RealRuns):
    rule = "RouterLogits"
    cause = "router_logits_exploding"

    def train(self, watch: Watch, *, sick: bool) -> None:
        mixture = Mixture()
        model = nn.Sequential(mixture, nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(40):
            update(model, optimizer, *batch())
            if sick:
                with torch.no_grad():
                    mixture.gate.weight *= 1.15
