"""Forwards that raise, models that follow them, gradients that cannot be read: what comes after is seen."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from train_twice import batch, train
from watchglass import Mode, open_run
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.stats import native


@pytest.fixture
def threads() -> Iterator[int]:
    """PyTorch has three threads."""
    before, ours = torch.get_num_threads(), native.set_threads(1)
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)
    native.set_threads(ours)


def network(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 4))


class Explosive(nn.Module):
    """Raises inside a forward on demand, as running out of memory does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 8), nn.Linear(8, 4)
        self.explodes = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.explodes:
            raise MemoryError("no memory for this batch")
        result: Tensor = self.last(x)
        return result


def test_a_model_built_again_after_a_failed_forward_is_found(tmp_path: Path) -> None:
    with watchglass.Hook(tmp_path / "run", strict=True, save_interval=1) as hook:
        PyTorchAdapter(hook.port, discover=True)
        # As a search for the batch size that fits does it: the first model is never called again, and stays alive.
        failed = Explosive()
        failed.explodes = True
        with pytest.raises(MemoryError):
            failed(batch(0)[0])
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = [train(model, optimizer, number) for number in range(3)]
    run = open_run(tmp_path / "run")
    # The first was called with gradients enabled, so it has the first number.
    assert run.scalars("model_2/loss")[1].tolist() == pytest.approx(losses)
    assert run.steps(Mode.TRAIN) == [0, 1, 2]


def test_a_watched_model_inside_another_is_still_a_part_of_it(tmp_path: Path) -> None:
    inner = network()
    outer = nn.Sequential(inner, nn.Linear(4, 4))
    with watchglass.Hook(tmp_path / "run", strict=True, save_interval=1) as hook:
        adapter = PyTorchAdapter(hook.port, discover=False)
        adapter.attach(outer)
        adapter.attach(inner)
        optimizer = torch.optim.SGD(outer.parameters(), 0.1)
        for number in range(3):
            train(outer, optimizer, number)
    run = open_run(tmp_path / "run")
    assert run.steps(Mode.TRAIN) == [0, 1, 2]
    assert run.steps(Mode.EVAL) == []


def test_what_follows_a_captured_evaluation_that_raised_is_not_captured(tmp_path: Path) -> None:
    model = Explosive()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = tmp_path / "run"
    modes = {"eval": {"save_interval": 2}}
    with watchglass.watch(model, run=run, strict=True, save_interval=1000, collections=["outputs"], modes=modes):
        train(model, optimizer, 0)
        model.explodes = True
        with torch.no_grad(), pytest.raises(MemoryError):
            model(batch(1)[0])
        model.explodes = False
        with torch.no_grad():
            model(batch(2)[0])
        train(model, optimizer, 3)
    output = open_run(run).tensor("first.output")
    assert output.steps(mode=Mode.EVAL) == [0]
    assert output.reduction(0, "max", mode=Mode.EVAL) == model_output_of(batch(1)[0], run)


def model_output_of(inputs: Tensor, run: Path) -> float:
    """What the first layer gave for these, from the weights that training has left after its first step."""
    torch.manual_seed(0)
    model = Explosive()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 0)
    with torch.no_grad():
        return float(model.first(inputs).max())


class Elsewhere(Tensor):
    """A tensor whose memory is not where its class says: nothing can be read at its address."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)  # type: ignore[attr-defined]
        made.values_inside = values  # type: ignore[attr-defined]
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: object, types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        return args[0]


@pytest.mark.parametrize("interval", [1, 1000])
def test_a_gradient_without_an_address_is_left_out_of_the_norm(tmp_path: Path, interval: int) -> None:
    model = network()
    with watchglass.watch(model, run=tmp_path / "run", strict=True, save_interval=interval):
        optimizer = torch.optim.SGD([next(model.parameters())], 0.1)
        loss = F.cross_entropy(model(batch(0)[0]), batch(0)[1])
        loss.backward()
        readable = model[0].weight.grad
        assert readable is not None
        weight = model[2].weight
        expected = float(readable.norm())
        weight.grad = None
        optimizer.add_param_group({"params": [weight]})
        with torch.no_grad():
            weight.grad = Elsewhere(torch.ones_like(weight))
        # What the optimizer makes of such a gradient is its own concern.
        with contextlib.suppress(RuntimeError, TypeError):
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert run.scalars("gradient_norm")[1][0] == pytest.approx(expected)


def test_learning_rates_keep_their_names_when_an_optimizer_dies(tmp_path: Path) -> None:
    model = network()
    with watchglass.watch(model, run=tmp_path / "run", strict=True, save_interval=1):
        first = torch.optim.SGD(model[0].parameters(), 0.1)
        second = torch.optim.SGD(model[2].parameters(), 0.01)

        def step(*optimizers: torch.optim.Optimizer) -> None:
            model.zero_grad()
            F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
            for optimizer in optimizers:
                optimizer.step()

        step(first, second)
        del first
        gc.collect()
        third = torch.optim.SGD(model[0].parameters(), 0.001)
        step(second, third)
    run = open_run(tmp_path / "run")
    rates = {name: run.scalars(name)[1].tolist() for name in run.tensor_names() if name.startswith("learning_rate")}
    # The first one's rate was recorded before there was another to tell it from.
    assert rates == {"learning_rate": [0.1], "learning_rate/1": [0.01, 0.01], "learning_rate/0": [0.001]}


def test_the_kernel_uses_as_many_threads_as_pytorch(tmp_path: Path, threads: int) -> None:
    model = network(512)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watchglass.watch(model, run=tmp_path / "run", strict=True, save_interval=1):
        train(model, optimizer, 0)
    assert native.set_threads(1) == threads
    values = open_run(tmp_path / "run").tensor("gradient/0.weight").reduction(0, "l2")
    assert np.isfinite(values)
