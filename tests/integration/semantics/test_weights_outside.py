"""Weights that no optimizer holds are in the catalog, and captured now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from train_twice import ALL, Stack, Watch, l2, train, trained_twice

RARELY = [1, 2, 3, 5, 7, 11, 15]


@pytest.mark.parametrize("frozen", [True, False])
def test_weights_outside_the_optimizer_are_captured_rarely(tmp_path: Path, frozen: bool) -> None:
    norm: list[float] = []

    def training(watch: Watch) -> Any:
        model = Stack()
        model.first.requires_grad_(not frozen)
        norm[:] = [model.first.weight.norm().item()]
        optimizer = torch.optim.SGD([*model.second.parameters(), *model.head.parameters()], 0.05)
        watch(model)
        return [train(model, optimizer, number) for number in ALL], model

    run = trained_twice(tmp_path, training)
    found = l2(run, "first.weight")
    assert list(found) == list(l2(run, "first.bias")) == RARELY
    assert list(found.values()) == pytest.approx(norm * len(RARELY))
    assert list(l2(run, "second.weight")) == ALL
    assert run.tensor("first.weight").info.trainable is not frozen
    assert run.tensor("second.weight").info.trainable is True
    assert not [name for name in run.tensor_names() if name.startswith("update/first")]


def test_of_a_large_weight_a_sample_is_read(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = nn.Sequential(nn.Linear(12, 4), nn.Linear(4, 4))
        model.unused = nn.Embedding(1 << 16, 80).requires_grad_(False)
        optimizer = torch.optim.SGD(model[0].parameters(), 0.05)
        watch(model)
        model.forward = lambda x: model[0](x)
        return [train(model, optimizer, number) for number in range(6)]

    run = trained_twice(tmp_path, training, same_steps=False)
    tensor = run.tensor("unused.weight")
    assert tensor.info.shape == (1 << 16, 80)
    assert 1 << 20 < tensor.reductions("count")[1][0] < 1 << 22
