"""Fact ``held_memory``: whether the graphs of earlier steps are still held, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from facts_of import facts_by_step, watching

STEPS = 12


def trained(run: Path, keep: Callable[[Tensor, Tensor], Any], steps: int = STEPS) -> dict[int, dict[str, Any]]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watching(model, run):
        for _ in range(steps):
            output = model(torch.randn(8, 4))
            loss = output.pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            keep(output, loss)
    return facts_by_step(run, "held_memory")


@pytest.mark.parametrize("what", ["loss", "output", "sum", "graph of the loss"])
def test_kept_graphs_are_held(tmp_path: Path, what: str) -> None:
    kept: list[Any] = []
    total = [torch.zeros(())]

    def keep(output: Tensor, loss: Tensor) -> None:
        if what == "sum":
            total[0] = total[0] + loss
        else:
            kept.append({"loss": loss, "output": output, "graph of the loss": loss.grad_fn}[what])

    facts = trained(tmp_path / "run", keep)
    assert [facts[n]["graphs"] for n in range(STEPS)] == [0, 0, *range(1, STEPS - 1)]
    assert [facts[n]["held"] for n in range(STEPS)] == [0, 0, *range(1, STEPS - 1)]
    assert {facts[n]["pid"] for n in range(STEPS)} == {os.getpid()}


def test_results_without_graphs_hold_nothing(tmp_path: Path) -> None:
    kept: list[Any] = []
    facts = trained(tmp_path / "run", lambda output, loss: kept.extend([loss.item(), loss.detach(), output.detach()]))
    assert facts[STEPS - 1]["graphs"] == STEPS - 2
    assert {facts[n]["held"] for n in range(STEPS)} == {0}


def test_at_most_sixteen_graphs_are_looked_for(tmp_path: Path) -> None:
    kept: list[Tensor] = []
    facts = trained(tmp_path / "run", lambda output, loss: kept.append(loss), steps=24)
    assert (facts[23]["graphs"], facts[23]["held"]) == (16, 16)


def test_blocks_are_those_of_the_objects_that_python_has_made(tmp_path: Path) -> None:
    kept: list[Any] = []
    facts = trained(tmp_path / "run", lambda output, loss: kept.append([float(n) for n in range(10_000)]))
    more = [facts[n]["blocks"] - facts[n - 1]["blocks"] for n in range(4, STEPS)]
    assert min(more) > 8_000
    assert max(more) < 20_000
