"""FrozenByMistake: frozen layers at random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def run(frozen: str, random: np.random.Generator) -> list[Step]:
    """A trained layer beside one that the optimizer holds frozen, with the weights of a kind."""
    bound = 1 / math.sqrt(32)
    kinds = {
        "uniform": random.uniform(-bound, bound, (64, 32)),
        "trained": random.uniform(-bound, bound, (64, 32)) + 0.02 * random.normal(size=(64, 32)),
    }
    membership = {"optimizers": {"optimizer": {"frozen": {"count": 1, "names": ["stem.weight"]}}}}
    weight = kinds[frozen].astype(np.float32)
    return [
        Step(
            scalars={"loss": 1.0},
            statistics={"stem.weight": weight, "readout.weight": random.normal(size=(8, 8)).astype(np.float32)},
            facts={"membership": membership} if step == 0 else {},
        )
        for step in range(20)
    ]


class TestFrozenByMistake(RuleSuite):
    rule = find_rule("FrozenByMistake")

    def sick(self) -> Sequence[Step]:
        return run("uniform", np.random.default_rng(0))

    def healthy(self) -> Sequence[Step]:
        return run("trained", np.random.default_rng(0))


class TestFrozenByMistakeInRealRuns(RealRuns):
    rule = "FrozenByMistake"
    cause = "frozen_by_mistake"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A frozen layer in the middle; the twin's were trained before."""
        model = classifier()
        if not sick:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            for _ in range(60):
                update(model, optimizer, *batch())
        model[2].requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
        watch(model)
        for _ in range(40):
            update(model, optimizer, *batch())
