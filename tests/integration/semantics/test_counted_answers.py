"""Evaluations that only count right predictions have an accuracy: that of the script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_twice import ALL, Stack, Watch, batch, trained_twice
from watchglass import Mode, Run

Count = Callable[[Tensor, Tensor], Any]


def topk(outputs: Tensor, labels: Tensor) -> Any:
    """As the ImageNet example of PyTorch has it."""
    _, predicted = outputs.topk(3, 1, True, True)
    correct = predicted.t().eq(labels.view(1, -1).expand_as(predicted.t()))
    return correct[:1].reshape(-1).float().sum(0)


WAYS: dict[str, Count] = {
    "argmax": lambda outputs, labels: (outputs.argmax(1) == labels).sum(),
    "keepdim": lambda outputs, labels: (
        outputs.argmax(dim=1, keepdim=True).eq(labels.view_as(outputs.argmax(1, True))).sum()
    ),
    "torch.argmax": lambda outputs, labels: torch.eq(torch.argmax(outputs, dim=-1), labels).sum(),
    "max": lambda outputs, labels: (outputs.max(1)[1] == labels).type(torch.float).sum(),
    "torch.max": lambda outputs, labels: (labels == torch.max(outputs.data, 1).indices).sum(),
    "softmax": lambda outputs, labels: (F.softmax(outputs, dim=1).argmax(1).cpu() == labels.to("cpu")).sum(),
    "topk": topk,
    "first of topk": lambda outputs, labels: (outputs.topk(k=2, dim=1)[1][:, 0] == labels).sum(),
    "in torch.func": lambda outputs, labels: (
        torch.vmap(lambda some, right: some == right)(outputs.argmax(1), labels)
        & torch.vmap(lambda some: some == labels[0])(labels.expand(2, -1)).any(0)
        | (outputs.argmax(1) == labels)
    ).sum(),
    "top one": lambda outputs, labels: (torch.topk(outputs, 1).indices.squeeze(1) == labels).sum(),
}


def run_of(path: Path, count: Count, *, loss: bool = False) -> tuple[Run, list[float]]:
    shares: list[float] = []

    def training(watch: Watch) -> Any:
        shares.clear()
        model = Stack()
        watch(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if number % 2:
                model.eval()
                with torch.no_grad():
                    for part in range(3):
                        inputs, labels = batch(100 + part)
                        outputs = model(inputs)
                        if loss:
                            F.cross_entropy(outputs, labels)
                        shares.append(float(count(outputs, labels)) / 16)
                model.train()
        return shares

    return trained_twice(path, training), shares


@pytest.mark.parametrize("way", WAYS)
def test_right_predictions_that_a_script_counts_are_its_accuracy(tmp_path: Path, way: str) -> None:
    run, shares = run_of(tmp_path, WAYS[way])
    steps, recorded = run.scalars("accuracy", Mode.EVAL)
    assert len(steps) == len(shares)
    np.testing.assert_allclose(recorded, shares, rtol=1e-6)
    assert 0 < np.mean(shares) < 1


OTHER: dict[str, Count] = {
    "another model": lambda outputs, labels: (outputs.argmax(1) == outputs.neg().argmax(1)).sum(),
    "by column": lambda outputs, labels: (outputs.argmax(0) == labels[:4]).sum(),
    "broadcast by mistake": lambda outputs, labels: (outputs.argmax(1, keepdim=True) == labels).sum() / 16,
    "not of the output": lambda outputs, labels: (outputs[:, :2].argmax(1) == labels).sum(),
    "a class": lambda outputs, labels: (outputs.argmax(1) == 1).sum(),
    "ignored labels": lambda outputs, labels: (outputs.argmax(1) == torch.full_like(labels, -100)).sum(),
    "labels alone": lambda outputs, labels: (labels == labels.flip(0)).sum(),
}


@pytest.mark.parametrize("way", OTHER)
def test_other_comparisons_are_no_accuracy(tmp_path: Path, way: str) -> None:
    run, _ = run_of(tmp_path, OTHER[way])
    assert len(run.scalars("accuracy", Mode.EVAL)[0]) == 0


def test_of_a_loss_function_and_a_count_one_is_recorded(tmp_path: Path) -> None:
    run, shares = run_of(tmp_path, WAYS["argmax"], loss=True)
    np.testing.assert_allclose(run.scalars("accuracy", Mode.EVAL)[1], shares, rtol=1e-6)


def test_nothing_stays_wrapped_in_training(tmp_path: Path) -> None:
    methods = {name: getattr(torch.Tensor, name) for name in ("argmax", "max", "topk", "eq", "__eq__", "cpu")}

    def training(watch: Watch) -> list[Tensor]:
        model = nn.Linear(12, 4)
        watch(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(3):
            inputs, labels = batch(number)
            with torch.no_grad():
                (model(inputs).argmax(1) == labels).sum()
            outputs = model(inputs)
            assert {name: getattr(torch.Tensor, name) for name in methods} == methods
            F.cross_entropy(outputs, labels).backward()
            optimizer.step()
        return [each.detach() for each in model.parameters()]

    trained_twice(tmp_path, training)
