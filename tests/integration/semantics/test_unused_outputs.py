"""Forwards of which the loss uses a part: autograd passes None for the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_twice import ALL, Watch, batch, losses, trained_twice


class Parts(nn.Module):
    """Returns several outputs that one node of autograd has made."""

    def __init__(self, split: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 8)
        self.split = split

    def forward(self, x: Tensor) -> Any:
        return self.split(self.head(torch.relu(self.first(x))))


SPLITS: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2, dim=1),
    "unbind": lambda x: x.view(-1, 4, 2).unbind(2),
    "split in a dict": lambda x: dict(zip("ab", x.split(4, dim=1), strict=True)),
    "max": lambda x: x.view(-1, 4, 2).max(2),
}


@pytest.mark.parametrize("split", SPLITS)
def test_a_model_of_whose_outputs_only_one_is_trained_is_watched(tmp_path: Path, split: str) -> None:
    def training(watch: Watch) -> Any:
        model = Parts(SPLITS[split])
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            outputs = model(inputs.requires_grad_())
            loss = F.cross_entropy(outputs["a"] if isinstance(outputs, dict) else outputs[0], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert len(losses(run)) == len(ALL)


class Language(nn.Module):
    """Returns logits and loss, as nanoGPT does; only the loss is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(torch.relu(self.first(x)))
        return logits, F.cross_entropy(logits, labels)


@pytest.mark.slow
def test_a_compiled_model_that_returns_logits_and_loss_is_watched(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        torch.compiler.reset()
        model = Language()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        compiled = torch.compile(model, backend="aot_eager")
        seen = []
        for number in ALL:
            _, loss = compiled(*batch(number))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert len(losses(run)) == len(ALL)
