"""Updates by several optimizers, by optimizers that hold others, by closures, and inside the backward."""

from __future__ import annotations

import _thread
import itertools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from train_twice import ALL, STEPS, Watch, batch, l2, losses, train, trained_twice
from watchglass import Mode, Run, open_run


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def gradients_are_never_old(run: Run) -> bool:
    names = run.tensor_names(role="gradient")
    return bool(names) and not any(
        a == b and a != 0 for name in names for a, b in itertools.pairwise(l2(run, name).values())
    )


def test_micro_batches_of_any_size_are_one_step_with_the_accumulated_gradient(tmp_path: Path) -> None:
    norms: list[float] = []
    objectives: list[float] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        objectives.clear()
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        for number in range(STEPS):
            optimizer.zero_grad()
            parts = []
            for part in range(1 + number % 3 if number % 5 == 4 else 3):
                inputs, labels = batch(10 * number + part, 4 + 4 * part)
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                parts.append(loss.item())
            norms.append(float(model[0].weight.grad.double().norm()))
            objectives.append(math.fsum(parts))
            optimizer.step()
        return model, optimizer, objectives

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    np.testing.assert_allclose(list(l2(run, "gradient/0.weight").values()), norms, rtol=1e-12)
    # What the sum of the gradients is the gradient of.
    np.testing.assert_allclose(losses(run), objectives, rtol=1e-12)


def test_muon_for_matrices_and_adam_for_the_rest_are_one_step(tmp_path: Path) -> None:
    norms: list[float] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        model = network()
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        muon = torch.optim.Muon(matrices, 0.02)
        adam = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2], 0.01)
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            norms.append(float(torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])))
            muon.step()
            adam.step()
        return model, muon, adam

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    for name in ("0.weight", "0.bias"):
        assert list(l2(run, f"gradient/{name}")) == list(l2(run, f"update/{name}")) == ALL
    assert list(l2(run, "optimizer/momentum_buffer/0.weight")) == list(l2(run, "optimizer/exp_avg/0.bias")) == ALL
    # The norm is that of all gradients of the step, in all groups.
    np.testing.assert_allclose(run.scalars("gradient_norm")[1], norms, rtol=1e-5)
    # One rate is `learning_rate`; from when a second optimizer has been seen they are numbered.
    assert dict(zip(*run.scalars("learning_rate"), strict=True)) == {0: 0.02}
    assert dict(zip(*run.scalars("learning_rate/0"), strict=True)) == dict.fromkeys(ALL[1:], 0.02)
    assert dict(zip(*run.scalars("learning_rate/1"), strict=True)) == dict.fromkeys(ALL, 0.01)
    assert gradients_are_never_old(run)


def test_an_update_without_a_forward_is_a_step(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)
        for number in ALL:
            if number % 20 == 19:
                optimizer.zero_grad()
                model[0].weight.square().sum().backward()
                optimizer.step()
            else:
                train(model, optimizer, number)
        return model

    # Its loss is known where it is captured only.
    run = trained_twice(tmp_path, training, same_steps=False)
    for path in ("full", "sparse"):
        assert open_run(tmp_path / path).steps() == ALL
    assert list(l2(run, "gradient/0.weight")) == ALL
    assert len(losses(run)) == STEPS


class Lookahead(torch.optim.Adam):
    """Steps by ``super().step()`` and then moves the weights once more."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.999)
        return loss


class Wrapping(Optimizer):
    """Holds another optimizer and lets it step, as libraries do that add a schedule or a sharpness term."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize("kind", ["super().step()", "super().step() of a class in use", "wrapping", "three deep"])
@pytest.mark.parametrize("with_closure", [False, True], ids=["plain", "closure"])
def test_an_optimizer_that_steps_another_is_one_update(tmp_path: Path, kind: str, with_closure: bool) -> None:
    moved: list[float] = []

    def training(watch: Watch) -> Any:
        moved.clear()
        model = network()
        if kind.endswith("in use"):
            # PyTorch puts hooks into the step of a class when it is first made: now the inner call has them too.
            torch.optim.Adam([nn.Parameter(torch.zeros(1))])
        optimizer: Optimizer = Lookahead(model.parameters(), 0.01)
        if kind in ("wrapping", "three deep"):
            optimizer = Wrapping(optimizer if kind == "three deep" else torch.optim.Adam(model.parameters(), 0.01))
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)
            weight = model[0].weight.detach().clone()

            def backward(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            if with_closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
            moved.append(float((model[0].weight.detach() - weight).double().norm()))
        return model, moved

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert len(losses(run)) == STEPS
    np.testing.assert_allclose(list(l2(run, "update/0.weight").values()), moved, rtol=1e-12)
    assert list(l2(run, "gradient/0.weight")) == ALL
    assert gradients_are_never_old(run)
    assert list(run.scalars("learning_rate")[0]) == ALL


class Sharpness(Optimizer):
    """SAM as it is commonly written: climbs, takes the gradient again there, returns and lets SGD step."""

    def __init__(self, parameters: Any, radius: float = 0.05) -> None:
        super().__init__(parameters, {"radius": radius, "lr": 0.1})
        self.inner = torch.optim.SGD(self.param_groups, 0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        old = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.add_(parameter.grad, alpha=float(0.05 / norm))
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        for parameter, value in zip(parameters, old, strict=True):
            parameter.copy_(value)
        self.inner.step()
        return loss


def test_two_backwards_in_one_update_as_sharpness_aware_minimisation_takes_them(tmp_path: Path) -> None:
    climbed: list[float] = []

    def training(watch: Watch) -> Any:
        climbed.clear()
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = Sharpness(model.parameters())
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)

            def backward(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            optimizer.zero_grad()
            backward()
            optimizer.step(backward)
            climbed.append(float(model[0].weight.grad.double().norm()))
        return model, climbed

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert run.steps(Mode.EVAL) == []
    # The gradients that SGD steps by are those of the second backward.
    np.testing.assert_allclose(list(l2(run, "gradient/0.weight").values()), climbed, rtol=1e-12)
    assert len(losses(run)) == STEPS


def test_lbfgs_asks_for_many_forwards_and_is_one_step(tmp_path: Path) -> None:
    asked: list[int] = []

    def training(watch: Watch) -> Any:
        asked.clear()
        model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4, line_search_fn="strong_wolfe")
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)

            def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
                asked.append(1)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
        return model, optimizer

    run = trained_twice(tmp_path, training)
    assert len(asked) > 2 * STEPS
    assert run.steps() == ALL
    assert run.steps(Mode.EVAL) == []
    assert list(l2(run, "gradient/0.weight")) == list(l2(run, "update/0.weight")) == ALL
    assert gradients_are_never_old(run)


def elsewhere(call: Callable[[], None]) -> None:
    """On a thread that ``threading`` has not started, as autograd's are."""
    over = threading.Event()

    def run() -> None:
        try:
            call()
        finally:
            over.set()

    _thread.start_new_thread(run, ())
    assert over.wait(60)


@pytest.mark.parametrize(
    "run_there", [lambda call: call(), elsewhere], ids=["on this thread", "on a thread of autograd's"]
)
def test_an_optimizer_for_each_parameter_that_steps_inside_the_backward(tmp_path: Path, run_there: Any) -> None:
    norms: list[dict[str, float]] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        model = network()
        optimizers = {parameter: torch.optim.Adam([parameter], 0.01) for parameter in model.parameters()}
        names = {parameter: name for name, parameter in model.named_parameters()}

        def update(parameter: Tensor) -> None:
            norms[-1][names[parameter]] = float(parameter.grad.double().norm())
            # On a device, autograd calls this on a separate thread while the training's waits.
            run_there(optimizers[parameter].step)
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        watch(model)
        seen = []
        for number in range(STEPS):
            inputs, labels = batch(number)
            norms.append({})
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            seen.append(loss.item())
        return seen, model, list(optimizers.values())

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    for name, norm in norms[0].items():
        assert list(l2(run, f"update/{name}")) == ALL
        recorded = l2(run, f"gradient/{name}")
        assert list(recorded) == ALL
        assert recorded[0] == pytest.approx(norm, rel=1e-12)
    assert len(losses(run)) == STEPS
    total = [sum(norm**2 for norm in of_step.values()) ** 0.5 for of_step in norms]
    np.testing.assert_allclose(run.scalars("gradient_norm")[1], total, rtol=1e-9)
