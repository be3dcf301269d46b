"""Losses that contain gradients: a forward that only ``torch.autograd.grad`` runs through is trained on as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from limited import watching_within
from watchglass import Hook, Mode, open_run
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.pytorch import PyTorchAdapter

STEPS = 40
FULL = replace(DEFAULT_LIMITS, alike_steps=1 << 40)

Loop = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def network(outputs: int = 1, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), activation(), nn.Linear(8, outputs))


def penalty(critic: nn.Module, points: Tensor) -> Tensor:
    """As WGAN-GP has it: of a network of linear layers and ReLU, its graph has weights but no outputs."""
    points = points.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean()


def penalised(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    inputs = torch.randn(8, 3)
    (model(inputs).mean() - model(inputs + 1).mean() + 10 * penalty(model, inputs + 0.5)).backward()
    optimizer.step()


def penalised_alone(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """The penalty has a backward of its own."""
    optimizer.zero_grad()
    model(torch.randn(8, 3)).mean().backward()
    penalty(model, torch.randn(8, 3)).backward()
    optimizer.step()


def penalised_now_and_then(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss = F.mse_loss(model(torch.randn(8, 3)), torch.zeros(8, 1))
    if number % 13 == 12:
        loss = loss + penalty(model, torch.randn(8, 3))
    loss.backward()
    optimizer.step()


def meta(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """MAML: the gradients of an inner step, which the outer one differentiates once more."""
    optimizer.zero_grad()
    inputs = torch.randn(8, 3)
    weights = dict(model.named_parameters())
    for _ in range(2):
        inner = F.l1_loss(functional_call(model, weights, (inputs[:4],)), torch.zeros(4, 1))
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        weights = {name: weight - 0.1 * each for (name, weight), each in zip(weights.items(), gradients, strict=True)}
    F.mse_loss(functional_call(model, weights, (inputs[4:],)), torch.zeros(4, 1)).backward()
    optimizer.step()


def physical(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """A differential equation: the loss has second derivatives, and no output."""
    optimizer.zero_grad()
    points = torch.randn(8, 3, requires_grad=True)
    (first,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
    (second[:, 0] + 1).square().mean().backward()
    optimizer.step()


def physical_with_a_boundary(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    points = torch.randn(8, 3, requires_grad=True)
    (first,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
    ((first[:, 0] + 1).square().mean() + model(torch.zeros(2, 3)).square().mean()).backward()
    optimizer.step()


def measured(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Now and then the script differentiates gradients, and trains on nothing of it."""
    if number % 10 == 9:
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(model(torch.randn(4, 3)).square().mean(), parameters, create_graph=True)
        torch.autograd.grad(sum(each.square().sum() for each in gradients), parameters)
    optimizer.zero_grad()
    F.mse_loss(model(torch.randn(8, 3)), torch.zeros(8, 1)).backward()
    optimizer.step()


LOOPS: list[tuple[Loop, type[nn.Module], int]] = [
    (penalised, nn.ReLU, 0), (penalised_alone, nn.ReLU, 0), (penalised_now_and_then, nn.ReLU, 0), (meta, nn.ReLU, 0),
    (physical, nn.Tanh, 0), (physical_with_a_boundary, nn.Tanh, 0), (measured, nn.ReLU, STEPS // 10),
]  # fmt: skip


def recorded(path: Path, loop: Loop, activation: type[nn.Module], limits: CaptureLimits) -> dict[str, Any]:
    model = network(activation=activation)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching_within(limits, model, path, save_interval=1000):
        for number in range(STEPS):
            loop(model, optimizer, number)
    run = open_run(path)
    losses = run.scalars("loss")
    return {
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "losses": [each.tolist() for each in losses],
        "steps": {mode.name: [run.global_step(step, mode) for step in run.steps(mode)] for mode in Mode},
    }


@pytest.mark.parametrize(("loop", "activation", "evaluations"), LOOPS, ids=[loop.__name__ for loop, *_ in LOOPS])
def test_a_forward_whose_gradients_are_trained_on_is_no_evaluation(
    tmp_path: Path, loop: Loop, activation: type[nn.Module], evaluations: int
) -> None:
    found = recorded(tmp_path / "full", loop, activation, FULL)
    assert (len(found["steps"]["TRAIN"]), len(found["steps"]["EVAL"])) == (STEPS, evaluations)
    assert recorded(tmp_path / "fast", loop, activation, DEFAULT_LIMITS) == found


def adversarial() -> Iterator[None]:
    generator, critic = network(3), network()
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]
    while True:
        fake = generator(torch.randn(8, 3))
        real = torch.randn(8, 3)
        optimizers[1].zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty(critic, real + fake.detach())).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()
        yield


def test_a_gradient_penalty_of_a_gan_is_no_evaluation(tmp_path: Path) -> None:
    hook = Hook(run=tmp_path / "run", save_interval=1000, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    for _ in zip(range(STEPS), adversarial(), strict=False):
        pass
    hook.close()
    run = open_run(tmp_path / "run")
    assert (len(run.steps()), len(run.steps(Mode.EVAL))) == (2 * STEPS, 0)
