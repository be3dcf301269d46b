"""The loss of a step is the objective of its update, however a script comes to its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from train_twice import batch, losses
from watchglass import open_run, watch

STEPS = 24


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def loss_of(model: nn.Module, number: int, rows: int = 8) -> Tensor:
    inputs, labels = batch(number, rows)
    return F.cross_entropy(model(inputs), labels)


Steps = Callable[[nn.Module, torch.optim.Optimizer], Iterator[float]]


def recorded(path: Path, steps: Steps) -> tuple[list[float], list[float]]:
    """Losses that a run holds, and those that its script says."""
    model = network()
    optimizer = SGD(model.parameters(), 0.05)
    with watch(model, run=path, save_interval=5, strict=True):
        expected = list(steps(model, optimizer))
    run = open_run(path)
    assert run.steps() == list(range(len(expected)))
    return list(losses(run)), expected


def accumulated_as_nanogpt_does(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        said = 0.0
        for part in range(4):
            loss = loss_of(model, 4 * number + part) / 4
            said += loss.item()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield said


def fewer_micro_batches_at_the_end_of_an_epoch(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        parts = 1 if number % 4 == 3 else 3
        said = 0.0
        for part in range(parts):
            loss = loss_of(model, 4 * number + part) / parts
            said += loss.item()
            loss.backward()
        optimizer.step()
        model.zero_grad()
        yield said


def several_losses_backward_one_by_one(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch(number, 8)
        output = model(inputs)
        first, second = F.cross_entropy(output, labels), 0.1 * output.square().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        yield math.fsum([first.item(), second.item()])


def several_losses_in_one_call(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        optimizer.zero_grad()
        first, second = loss_of(model, number), loss_of(model, number + 100)
        torch.autograd.backward([first, second])
        optimizer.step()
        yield math.fsum([first.item(), second.item()])


def weighted_by_an_explicit_gradient(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward(gradient=torch.tensor(0.25))
        optimizer.step()
        yield 0.25 * loss.item()


def attacked_first(model: nn.Module, optimizer: Any) -> Iterator[float]:
    """FGSM: the first backward is for the gradient of the inputs, and its other gradients are thrown out."""
    for number in range(STEPS):
        inputs, labels = batch(number, 8)
        inputs.requires_grad_()
        F.cross_entropy(model(inputs), labels).backward()
        attacked = (inputs + 0.1 * inputs.grad.sign()).detach()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        loss = F.cross_entropy(model(attacked), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def attacked_for_the_inputs_alone(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch(number, 8)
        change = torch.zeros_like(inputs, requires_grad=True)
        for _ in range(3):
            F.cross_entropy(model(inputs + change), labels).backward(inputs=[change])
            change = (change + 0.01 * change.grad.sign()).detach().requires_grad_()
        loss = F.cross_entropy(model(inputs + change.detach()), labels)
        loss.backward()
        optimizer.step()
        yield loss.item()


def with_a_gradient_penalty(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch(number, 8)
        inputs.requires_grad_()
        loss = F.cross_entropy(model(inputs), labels)
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        whole = loss + gradient.square().sum()
        whole.backward()
        optimizer.step()
        yield whole.item()


def sharpness_aware(model: nn.Module, optimizer: Any) -> Iterator[float]:
    """SAM: the second backward's gradient updates the weights, at which the first was."""
    for number in range(STEPS):
        loss_of(model, number).backward()
        with torch.no_grad():
            moved = [0.05 * parameter.grad for parameter in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moved)
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moved)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def given_up_and_tried_again(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        loss_of(model, number).backward()
        if number % 3 == 2:
            for parameter in model.parameters():
                parameter.grad = None
            loss = loss_of(model, number + 50)
            loss.backward()
            yield loss.item()
        else:
            yield loss_of(model, number).item()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad.zero_()


def never_cleared(model: nn.Module, optimizer: Any) -> Iterator[float]:
    """Gradients of earlier updates are in it, their losses are not: each counts in the first update that uses it."""
    for number in range(STEPS):
        loss = loss_of(model, number)
        loss.backward()
        optimizer.step()
        yield loss.item()


def half_frozen_by_turns(model: nn.Module, optimizer: Any) -> Iterator[float]:
    for number in range(STEPS):
        for index, layer in enumerate((model[0], model[2])):
            layer.requires_grad_(number // 6 % 2 == index)
        optimizer.zero_grad()
        first, second = loss_of(model, number), loss_of(model, number + 60)
        first.backward()
        second.backward()
        optimizer.step()
        yield math.fsum([first.item(), second.item()])


@pytest.mark.parametrize(
    "steps",
    [
        accumulated_as_nanogpt_does, fewer_micro_batches_at_the_end_of_an_epoch, several_losses_backward_one_by_one,
        several_losses_in_one_call, weighted_by_an_explicit_gradient, attacked_first, attacked_for_the_inputs_alone,
        with_a_gradient_penalty, sharpness_aware, given_up_and_tried_again, never_cleared, half_frozen_by_turns,
    ],
    ids=lambda steps: steps.__name__,
)  # fmt: skip
def test_the_loss_is_what_the_update_minimises(tmp_path: Path, steps: Steps) -> None:
    found, expected = recorded(tmp_path / "run", steps)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_closure_counts_by_its_first_call(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=5)
    said: list[float] = []
    with watch(model, run=tmp_path / "run", save_interval=2, strict=True):
        for number in range(8):

            def closure(number: int = number) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, number)
                loss.backward()
                return loss

            said.append(optimizer.step(closure).item())
    assert losses(open_run(tmp_path / "run")) == pytest.approx(said, rel=1e-6)


def test_losses_are_recorded_without_the_scale_of_a_scaler(tmp_path: Path) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    said: list[float] = []
    with watch(model, run=tmp_path / "run", save_interval=5, strict=True):
        for number in range(STEPS):
            optimizer.zero_grad()
            parts = [loss_of(model, 2 * number + part) / 2 for part in range(2)]
            for part in parts:
                scaler.scale(part).backward()
            if number == 7:
                next(model.parameters()).grad.fill_(math.inf)
            scaler.step(optimizer)
            scaler.update()
            said.append(math.fsum(part.item() for part in parts))
    assert losses(open_run(tmp_path / "run")) == pytest.approx(said, rel=1e-6)


def test_the_mean_per_micro_batch_is_beside_it(tmp_path: Path) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.05)
    said: list[float] = []
    with watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for number in range(STEPS):
            optimizer.zero_grad()
            parts = [loss_of(model, 2 * number + part) for part in range(2)]
            for part in parts:
                (part / 2).backward()
            optimizer.step()
            said.append(math.fsum(part.item() for part in parts) / 2)
    run = open_run(tmp_path / "run")
    assert list(run.scalars("loss/cross_entropy")[1]) == pytest.approx(said, rel=1e-6)
    assert losses(run) == pytest.approx(said, rel=1e-6)


def test_optimizers_that_step_inside_the_backward_have_its_loss(tmp_path: Path) -> None:
    model = network()
    optimizers = {parameter: SGD([parameter], 0.05) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    said: list[float] = []
    with watch(model, run=tmp_path / "run", save_interval=5, strict=True):
        for number in range(STEPS):
            loss = loss_of(model, number)
            loss.backward()
            said.append(loss.item())
    assert losses(open_run(tmp_path / "run")) == pytest.approx(said, rel=1e-6)


def test_a_manual_step_has_the_losses_of_its_backwards(tmp_path: Path) -> None:
    model = network()
    said: list[float] = []
    with watch(model, run=tmp_path / "run", save_interval=5, strict=True) as hook:
        for number in range(STEPS):
            with hook.step("train"):
                parts = [loss_of(model, 2 * number + part) for part in range(2)]
                for part in parts:
                    part.backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.05 * parameter.grad
                        parameter.grad = None
            said.append(math.fsum(part.item() for part in parts))
    assert losses(open_run(tmp_path / "run")) == pytest.approx(said, rel=1e-6)


def test_clearing_on_a_device_is_seen_without_waiting_for_it(tmp_path: Path) -> None:
    from devices.fake_device import DEVICE, FakeDevice, move

    with FakeDevice(lambda name: None):
        model = move(network())
        optimizer = SGD(model.parameters(), 0.05)
        said: list[float] = []
        with watch(model, run=tmp_path / "run", save_interval=5, strict=True):
            for number in range(STEPS):
                inputs, labels = (tensor.to(DEVICE) for tensor in batch(number, 8))
                F.cross_entropy(model(inputs), labels).backward()
                if number % 2:
                    optimizer.zero_grad(set_to_none=False)
                    loss = F.cross_entropy(model(0.5 * inputs), labels)
                    loss.backward()
                    said.append(float(loss.cpu().detach()))
                else:
                    said.append(math.nan)
                optimizer.step()
                optimizer.zero_grad()
    found = losses(open_run(tmp_path / "run"))
    assert list(found[1::2]) == pytest.approx(said[1::2], rel=1e-5)
