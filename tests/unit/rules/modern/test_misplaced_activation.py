"""MisplacedActivation: a softmax between layers, or a ReLU on logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

RULE = "MisplacedActivation"
KINDS = {"softmax": "softmax", "product": "activates", "relu": "activates"}


def graph(between: str) -> dict[str, Any]:
    layers = [[f"{name}.weight", "linear", 16, 16] for name in ("stem", "middle", "readout")]
    pairs = [[0, 1, "relu"], [1, 2, between]]
    data = {"layers": layers, "pairs": pairs, "layers_count": 3, "pairs_count": 2, "kinds": KINDS, "complete": True}
    kinds = dict.fromkeys(("stem", "middle", "readout"), "linear")
    return {"forward_graph": data, "model": {"module_kinds": kinds, "module_types": kinds}}


class TestMisplacedActivation(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return training(4, facts={0: graph("softmax")})

    def healthy(self) -> Sequence[Step]:
        return training(4, facts={0: graph("softmax product")})


class TestMisplacedActivationInRealRuns(RealRuns):
    rule = "MisplacedActivation"
    cause = "activation_misplaced"

    def train(self, watch: Watch, *, sick: bool) -> None:
        bend = nn.Softmax(-1) if sick else nn.Tanh()
        fit(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8), bend, nn.Linear(8, 4)), watch)


class Hidden(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.table = nn.Linear(16, 8), nn.Linear(8, 4, bias=bias), nn.Embedding(8, 4)
        self.between = between

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.second(self.between(self.first(inputs)))
        return output


class Table(Hidden):
    """Rows of a table, weighed by a softmax."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(inputs).softmax(1) @ self.table.weight


def found_in(run: Path, model: nn.Module, last: Callable[[Tensor], Tensor] = lambda out: out) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watchglass.watch(model, run=run, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(4):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(last(model(inputs)), labels).backward()
            optimizer.step()
    return [(f.severity.value, "".join(f.causes[:1])) for f in replay(str(run), [RuleSpec(RULE)]).findings]


@pytest.mark.parametrize(
    ("model", "last", "found"),
    [
        (Hidden(lambda hidden: hidden.softmax(1)), lambda out: out, [("warning", "activation_misplaced")]),
        (Hidden(torch.relu), torch.relu, [("warning", "activation_misplaced")]),
        (Hidden(lambda hidden: hidden * hidden.softmax(1)), lambda out: out, []),
        (Hidden(lambda hidden: F.gumbel_softmax(hidden)), lambda out: out, []),
        (Hidden(lambda hidden: torch.sigmoid(hidden)), lambda out: out, []),
        (Table(lambda hidden: hidden), lambda out: out, []),
        (Hidden(torch.relu), lambda out: 1 - torch.relu(out), []),
    ],
    ids=["softmax", "relu", "gate", "noise", "sigmoid", "table", "hinge"],
)
def test_only_what_has_no_purpose_is_reported(
    run_path: Path, model: nn.Module, last: Callable[[Tensor], Tensor], found: list[tuple[str, str]]
) -> None:
    assert found_in(run_path, model, last) == found
