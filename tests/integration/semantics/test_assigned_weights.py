"""Weights that are replaced in the middle of a training run, not overwritten: recorded under the same names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from train_twice import Watch, numbers, numbers_of, train, trained_twice


def test_weights_that_are_assigned_keep_their_names(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    def training(watch: Watch) -> Any:
        model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        saved = copy.deepcopy(model.state_dict())
        watch(model)
        losses = [train(model, optimizer, number) for number in range(20)]
        model.load_state_dict(saved, assign=True)
        # Loaded ones are new parameters, which only a new optimizer has.
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        seen[:] = [model[0].weight.detach().clone()]
        return losses + [train(model, optimizer, number) for number in range(20, 24)], model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.tensor_names(role="weight") == ["0.weight", "2.weight"]
    assert run.tensor("0.weight").steps() == run.tensor("gradient/0.weight").steps() == list(range(24))
    found, expected = numbers(run, "0.weight", 20), numbers_of(seen[0])
    for key in ("count", "min", "max"):
        assert found[key] == expected[key]
