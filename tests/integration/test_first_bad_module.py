"""Which module is named when a training meets its first NaN or infinity."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import open_run

Act = Callable[[Tensor], Tensor]


class Bad(nn.Module):
    """Passes its input through, until it is told to spoil it."""

    def __init__(self, spoil: Act) -> None:
        super().__init__()
        self.spoil = spoil
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        return self.spoil(x) if self.on else x


class Poisoned(torch.autograd.Function):
    """Identity whose gradient is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * float("nan")


def network(spoil: Act) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), Bad(spoil), nn.ReLU(), nn.Linear(8, 3))


def answer(
    tmp_path: Path,
    model: nn.Module,
    *,
    before_step: Callable[[int], None],
    loss: Callable[..., Tensor] = F.cross_entropy,
    steps: int = 6,
) -> dict[str, Any]:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(16, 6), torch.randint(0, 3, (16,))
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for step in range(steps):
            before_step(step)
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
    facts = open_run(tmp_path / "run").facts("first_bad_module")
    assert len(facts) == 1, "the first bad module is looked for once"
    return facts[0].data


def switch_on(model: nn.Sequential, at: int = 3) -> Callable[[int], None]:
    def at_step(step: int) -> None:
        model[3].on = step >= at  # type: ignore[assignment]

    return at_step


@pytest.mark.parametrize("spoil", [lambda x: x * float("nan"), lambda x: x * 1e38 * 1e38, torch.log])
def test_a_rerun_names_the_module_whose_output_was_bad_first(tmp_path: Path, spoil: Act) -> None:
    model = network(spoil)
    found = answer(tmp_path, model, before_step=switch_on(model))
    assert (found["level"], found["where"], found["module"], found["module_type"]) == ("rerun", "forward", "3", "Bad")
    assert found["tensor"] == "3.output"
    assert not found["refused"]


def test_the_rerun_leaves_no_trace_in_the_training(tmp_path: Path) -> None:
    def run(watched: bool) -> tuple[list[Any], dict[str, Tensor]]:
        model = network(lambda x: x * float("inf"))
        switch = switch_on(model)
        if watched:
            answer(tmp_path, model, before_step=switch)
        else:
            torch.manual_seed(3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            inputs, labels = torch.randn(16, 6), torch.randint(0, 3, (16,))
            for step in range(6):
                switch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        draws = [torch.rand(1).item(), random.random(), float(np.random.rand())]  # noqa: NPY002
        return draws, model.state_dict()

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    plain = run(watched=False)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    watched = run(watched=True)
    assert plain[0] == watched[0]
    for name, value in plain[1].items():
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(watched[1][name])), name


def test_poisoned_weights_never_make_the_first_layer_guilty(tmp_path: Path) -> None:
    model = network(lambda x: x)

    def poison(step: int) -> None:
        if step == 3:
            with torch.no_grad():
                model[5].weight[0, 0] = float("nan")  # type: ignore[index,operator]

    found = answer(tmp_path, model, before_step=poison)
    assert (found["where"], found["tensor"]) == ("weights", "5.weight")


def test_finite_modules_and_a_loss_that_is_not(tmp_path: Path) -> None:
    model = network(lambda x: x)

    def bad_loss(output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels) / 0.0

    found = answer(tmp_path, model, before_step=lambda step: None, loss=bad_loss)
    assert found["where"] == "loss"
    assert "all modules are finite" in found["sentence"]


def test_data_that_is_not_finite_is_said_to_be_the_data(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        for step in range(3):
            inputs = torch.randn(4, 6)
            if step == 2:
                inputs[1, 1] = float("nan")
            F.cross_entropy(model(inputs), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    assert open_run(tmp_path / "run").facts("first_bad_module")[0].data["where"] == "input"


@pytest.mark.parametrize("at", [3, 30])
def test_a_finite_loss_with_a_bad_gradient_is_followed_backwards(tmp_path: Path, at: int) -> None:
    # At step 30 forwards are no longer marked: the loss is computed again to know what it sent back.
    model = network(Poisoned.apply)
    found = answer(tmp_path, model, before_step=switch_on(model, at), steps=at + 3)
    assert (found["level"], found["where"], found["module"]) == ("rerun", "backward", "3")


def test_a_forward_that_does_not_repeat_itself_is_refused_with_the_reason(tmp_path: Path) -> None:
    counter = iter(range(1, 1000))
    model = network(lambda x: x * float("inf") * next(counter) + next(counter) * 0 if next(counter) % 2 else x)
    model.append(nn.Identity())

    def forward_twice_differs(step: int) -> None:
        model[3].on = step >= 3  # type: ignore[assignment]

    found = answer(tmp_path, model, before_step=forward_twice_differs)
    assert found["level"] == "flags"
    assert "did not repeat itself" in found["refused"]


def test_arguments_that_cannot_be_given_twice_are_refused(tmp_path: Path) -> None:
    class FromIterator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: Tensor, more: Any) -> Tensor:
            return self.linear(x) * next(more)  # type: ignore[no-any-return]

    model = FromIterator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        for scale in (1.0, 1.0, float("nan")):
            F.cross_entropy(model(torch.randn(4, 6), iter([scale])), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    found = open_run(tmp_path / "run").facts("first_bad_module")[0].data
    assert found["level"] == "flags"
    assert "cannot be given twice" in found["refused"]
