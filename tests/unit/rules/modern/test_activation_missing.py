"""ActivationMissing: layers in a row with nothing non-linear between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from real_runs import RealRuns, Watch, batch, fit
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "ActivationMissing"


def graph(between: str) -> dict[str, Any]:
    layers = [[f"{name}.weight", "linear", 16, 16] for name in ("stem", "middle", "readout")]
    pairs = [[0, 1, between], [1, 2, between]]
    kinds = {"relu": "activates", "dropout": "drops"}
    data = {"layers": layers, "pairs": pairs, "layers_count": 3, "pairs_count": 2, "kinds": kinds, "complete": True}
    return {"forward_graph": data}


class TestActivationMissing(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return training(4, facts={0: graph("dropout")})

    def healthy(self) -> Sequence[Step]:
        return training(4, facts={0: graph("relu dropout")})


class TestActivationMissingInRealRuns(RealRuns):
    rule = "ActivationMissing"
    cause = "activation_missing"

    def train(self, watch: Watch, *, sick: bool) -> None:
        bend = nn.Identity if sick else nn.ReLU
        fit(nn.Sequential(nn.Linear(16, 16), bend(), nn.Linear(16, 16), bend(), nn.Linear(16, 4)), watch)


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.down, self.up = nn.Linear(16, 16), nn.Linear(16, 2), nn.Linear(2, 16)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(torch.relu(self.frozen(inputs) + self.up(self.down(inputs))))
        return output


def head_on_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    return model


def layers(*sizes: int, between: tuple[nn.Module, ...] = ()) -> nn.Sequential:
    made: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        made += [nn.Linear(size, following), *between]
    return nn.Sequential(*made[: len(made) - len(between)])


@pytest.mark.parametrize(
    ("model", "fires"),
    [
        (layers(16, 16, 4), True),
        (layers(16, 16, 4, between=(nn.BatchNorm1d(16), nn.Dropout(0.1))), True),
        (nn.Sequential(nn.Linear(16, 16), nn.ReLU(), *layers(16, 16, 16, 16, 4)), True),
        (layers(16, 4), False),
        # A factorisation, as of a linear autoencoder.
        (layers(16, 2, 4), False),
        (nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4)), False),
        (Adapted(), False),
        (head_on_frozen(), False),
    ],
)  # fmt: skip
def test_only_superfluous_layers_are_reported(run_path: Path, model: nn.Module, fires: bool) -> None:
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
    with watchglass.watch(model, run=run_path, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(3):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    found = replay(str(run_path), [RuleSpec(RULE)]).findings
    assert [finding.causes[:1] for finding in found] == ([("activation_missing",)] if fires else [])
