"""MoEImbalance: a router sends almost all tokens to few experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from mixtures import Mixture
from real_runs import RealRuns, Watch, fit
from synthetic_steps import ALWAYS, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def loads(*shares: float, tokens: int = 512, steps: int = 80) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        drawn = np.random.default_rng(step).multinomial(tokens, shares)
        arrays["block.gate.router_load"] = drawn / tokens
        arrays["block.gate.router_logits"] = np.zeros((tokens, len(shares)))

    return training(steps, change=change, due=ALWAYS)


class TestMoEImbalance(RuleSuite):
    rule = find_rule("MoEImbalance")

    def sick(self) -> Sequence[Step]:
        return loads(0.94, 0.02, 0.02, 0.02)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (loads(0.8, *[0.2 / 7] * 7), loads(0.94, 0.02, 0.02, 0.02, steps=20))

    def healthy(self) -> Sequence[Step]:
        # Few tokens, and experts that specialise.
        return [*loads(*[1 / 8] * 8, tokens=16, steps=40), *loads(0.4, *[0.6 / 7] * 7, steps=40)]


class TestMoEImbalanceInRealRuns(RealRuns):
    rule = "MoEImbalance"
    cause = "experts_unbalanced"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = Mixture()
        if sick:
            with torch.no_grad():
                model.gate.bias[1] = 50.0
        fit(nn.Sequential(model, nn.Linear(16, 4)), watch, rate=0.01, steps=60)
