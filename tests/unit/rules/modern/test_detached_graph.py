"""DetachedGraph: parameters that no backward can reach."""

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

RULE = "DetachedGraph"


def unreached(cut: str | None, names: Sequence[str] = ("early.weight", "early.bias")) -> dict[str, Any]:
    lost = {"count": len(names), "names": list(names), "ran": len(names), "cut_before": cut}
    return {"loss_graph": {"terms": [], "unreached": lost if names else None}}


class TestDetachedGraph(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return training(20, facts={0: unreached("stem")})

    def healthy(self) -> Sequence[Step]:
        # A part whose result is not used, and one that the next step reaches.
        return training(20, facts={0: unreached(None), 1: unreached("stem"), 2: unreached(None, ())})


class Autoencoder(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.between = between

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.decoder(self.between(self.encoder(inputs)))
        return output


def kept(values: Tensor) -> Tensor:
    return values


class TestDetachedGraphInRealRuns(RealRuns):
    rule = "DetachedGraph"
    cause = "graph_detached"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(Autoencoder(Tensor.detach if sick else kept), watch, rate=0.1)


class SideBranch(Autoencoder):
    """The encoder is trained by a second head, and one more part has no use."""

    def __init__(self) -> None:
        super().__init__(Tensor.detach)
        self.probe, self.unused = nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        code = self.encoder(inputs)
        self.unused(code)
        output: Tensor = self.probe(code) + self.decoder(code.detach())
        return output


@pytest.mark.parametrize(
    ("model", "trained", "fires"),
    [
        (Autoencoder(lambda code: torch.tensor(code.tolist())), "", True),
        (SideBranch(), "", False),
        # Trained before: the optimizer does not hold it.
        (Autoencoder(Tensor.detach), "decoder", False),
    ],
    ids=["list", "probe", "other optimizer"],
)
def test_only_what_an_optimizer_should_train_is_reported(
    run_path: Path, model: nn.Module, trained: str, fires: bool
) -> None:
    optimizer = torch.optim.SGD(model.get_submodule(trained).parameters(), lr=0.01)
    with watchglass.watch(model, run=run_path, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(6):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    found = replay(str(run_path), [RuleSpec(RULE)]).findings
    assert [finding.causes[:1] for finding in found] == ([("graph_detached",)] if fires else [])
