"""A rule that is watched for alone finds what it finds where all is captured: its needs are all that it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import capture_for, rule_names

STEPS = 60


def network(activation: Callable[[], nn.Module] = nn.ReLU, depth: int = 3) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(16, 16), activation()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def healthy() -> tuple[nn.Module, float]:
    return network(), 0.05


def too_fast() -> tuple[nn.Module, float]:
    return network(), 1e6


def not_at_all() -> tuple[nn.Module, float]:
    return network(), 0.0


def dead() -> tuple[nn.Module, float]:
    model = network()
    with torch.no_grad():
        model[2].bias.fill_(-100.0)  # type: ignore[union-attr, operator]
    return model, 0.05


def saturated() -> tuple[nn.Module, float]:
    return network(nn.Sigmoid, 8), 0.05


def all_alike() -> tuple[nn.Module, float]:
    model = network()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.1)
    return model, 0.05


def zero_at_first() -> tuple[nn.Module, float]:
    model = network()
    nn.init.zeros_(model[-1].weight)  # type: ignore[arg-type]
    return model, 0.05


class _Detached(nn.Module):
    """Its first layer gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * 0.0
        return self.last(torch.relu(x) + 1)  # type: ignore[no-any-return]


def cut_off() -> tuple[nn.Module, float]:
    return _Detached(), 0.05


def record(run: Path, made: Callable[[], tuple[nn.Module, float]], **settings: Any) -> str:
    torch.manual_seed(0)
    model, rate = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    hook = watchglass.watch(model, run=run, save_interval=1, strict=True, **settings)
    for step in range(STEPS):
        inputs = torch.randn(32, 16)
        loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                inputs = torch.randn(32, 16)
                F.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
            model.train()
    hook.close()
    return str(run)


def said(finding: Finding) -> tuple[Any, ...]:
    """All of a finding but its sentence, which may call layers by what the tensors beside them tell."""
    found = finding
    return found.rule, found.severity, found.step, found.count, found.tensors, repr(found.value), found.causes


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [healthy, too_fast, not_at_all, dead, saturated, all_alike, zero_at_first, cut_off],
    ids=lambda made: made.__name__,
)
def test_each_rule_gets_all_that_it_reads(tmp_path: Path, made: Callable[[], tuple[nn.Module, float]]) -> None:
    everything = record(tmp_path / "everything", made)
    for name in rule_names():
        alone = record(tmp_path / name, made, collections=capture_for([RuleSpec(name)])["collections"])
        for calibration in ("default", "sagemaker"):
            full, own = (replay(run, [RuleSpec(name)], calibration=calibration) for run in (everything, alone))
            assert list(map(said, own.findings)) == list(map(said, full.findings)), (name, calibration)
            assert own.statuses == full.statuses, (name, calibration)
