"""The fact "stage": other parameters, another optimizer or other data, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from facts_of import batch, classifier, facts_by_step, watching

#: Steps of a stage that is long enough for another one like it.
_LONG = 90


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for at in range(number):
        inputs, labels = batch(at)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def _sgd(parameters: Iterable[Any], rate: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, rate)


def _stages(run: Path) -> dict[int, str]:
    return {step: data["begins_with"] for step, data in facts_by_step(run, "stage").items()}


def test_a_part_that_is_unfrozen_for_a_new_optimizer(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=1000):
        for parameter in model[0].parameters():
            parameter.requires_grad = False
        _steps(model, _sgd(model[4].parameters()), 5)
        for parameter in model[0].parameters():
            parameter.requires_grad = True
        _steps(model, _sgd(model.parameters()), 5)
    assert _stages(run_path) == {5: "parameters"}


def test_a_group_that_is_added(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=1000):
        optimizer = _sgd(model[4].parameters())
        _steps(model, optimizer, 30)
        optimizer.add_param_group({"params": list(model[0].parameters())})
        _steps(model, optimizer, 5)
    assert _stages(run_path) == {30: "parameters"}


def test_a_part_that_is_unfrozen_for_the_same_optimizer_shows_at_a_captured_step(run_path: Path) -> None:
    model = classifier()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    with watching(model, run_path):
        optimizer = _sgd(model.parameters())
        _steps(model, optimizer, 4)
        for parameter in model[0].parameters():
            parameter.requires_grad = True
        _steps(model, optimizer, 4)
    assert _stages(run_path) == {4: "parameters"}


def test_an_optimizer_of_another_class(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=1000):
        _steps(model, torch.optim.Adam(model.parameters()), 5)
        _steps(model, _sgd(model.parameters()), 5)
    assert _stages(run_path) == {5: "optimizer"}


def test_the_same_optimizer_made_again_after_a_long_stage(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=1000):
        _steps(model, _sgd(model.parameters()), _LONG)
        _steps(model, _sgd(model.parameters(), 0.001), 5)
    assert _stages(run_path) == {_LONG: "optimizer"}


def test_an_optimizer_that_is_made_for_each_short_epoch_begins_no_stage(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path, save_interval=1000):
        for _ in range(4):
            _steps(model, _sgd(model.parameters()), 8)
    assert _stages(run_path) == {}


def test_two_optimizers_that_take_turns_begin_no_stage_after_their_first_steps(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        first, second = _sgd(model[0].parameters()), _sgd(model[4].parameters())
        for _ in range(8):
            for other, optimizer in ((second, first), (first, second)):
                for group in other.param_groups:
                    for parameter in group["params"]:
                        parameter.requires_grad = False
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.requires_grad = True
                _steps(model, optimizer, 1)
    assert all(step < 2 for step in _stages(run_path))


def test_another_data_set(run_path: Path) -> None:
    model = classifier()
    inputs, labels = batch()
    one, other, validation = (DataLoader(TensorDataset(inputs + shift, labels), 8) for shift in (0.0, 1.0, 2.0))
    optimizer = _sgd(model.parameters())
    with watching(model, run_path, save_interval=1000):
        for loader in (*[one] * 50, other, one):
            for each, classes in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(each), classes).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for each, classes in validation:
                    F.cross_entropy(model(each), classes)
            model.train()
    assert _stages(run_path) == {100: "data"}
