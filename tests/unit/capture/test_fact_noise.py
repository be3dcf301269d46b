"""Fact ``gradient_noise``: noise and signal of a gradient, from the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facts_of import batch, facts, watching
from watchglass.capture.pytorch.facts.gradient_noise import next_after


def exact(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor) -> Any:
    """Noise and signal of a batch by one backward for each sample, over the weights of linear layers."""
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    rows = []
    for sample, target in zip(inputs, targets, strict=True):
        value = loss(model(sample[None]), target[None]) / len(inputs)
        rows.append(torch.cat([each.flatten() for each in torch.autograd.grad(value, weights)]))
    each = torch.stack(rows).double()
    noise = each.var(0).sum()
    return float(noise), float(each.mean(0).square().sum() - noise / len(inputs))


class Sequences(nn.Module):
    """Linear layers at each of several positions, and one after their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(values)).mean(1))


@pytest.mark.parametrize("sequences", [False, True])
def test_noise_and_signal_are_those_of_a_backward_for_each_sample(run_path: Path, sequences: bool) -> None:
    torch.manual_seed(0)
    model = Sequences() if sequences else nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs, labels = torch.randn(8, 5, 6) if sequences else torch.randn(8, 6), torch.arange(8) % 3
    noise, signal = exact(model, F.cross_entropy, inputs, labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, run_path, facts=("gradient_noise",)):
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    (found,) = facts(run_path, "gradient_noise")
    assert found["noise"] == pytest.approx(noise, rel=1e-4)
    assert found["signal"] == pytest.approx(signal, rel=1e-3, abs=1e-4 * noise)
    assert (found["batch"], found["micro_batches"], found["ranks"], found["samples"]) == (8, 1, 1, 8)
    assert len(found["layers"]) == 2


def test_micro_batches_count_and_the_gradient_does_not_change(run_path: Path) -> None:
    def gradients(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters())

        def update() -> None:
            for _ in range(4):
                inputs, labels = batch()
                F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

        if watched:
            with watching(model, run_path, facts=("gradient_noise",)):
                update()
        else:
            update()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    watched, bare = gradients(True), gradients(False)
    assert all(torch.equal(one, other) for one, other in zip(watched, bare, strict=True))
    (found,) = facts(run_path, "gradient_noise")
    assert found["micro_batches"] == 4


def pairs(model: nn.Module) -> Tensor:
    """One backward of two forwards."""
    (one, labels), (other, _) = batch(), batch()
    return F.cross_entropy(model(one) + model(other), labels)


def again(model: nn.Module) -> Tensor:
    """A layer that is used twice."""
    inputs, labels = batch()
    return F.cross_entropy(model(inputs), labels)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(values)))


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Linear(6, 3), pairs),
        (Twice(), again),
        (nn.Linear(6, 3), lambda model: model(torch.ones(1, 6)).sum()),
        (nn.LSTM(6, 3), lambda model: model(torch.ones(4, 2, 6))[0].sum()),
    ],
)
def test_what_does_not_show_the_samples_of_an_update_is_left_out(
    run_path: Path, model: nn.Module, loss: Callable[[nn.Module], Tensor]
) -> None:
    """Pairs share a backward; a layer used twice; one sample; time as the first axis."""
    whole = nn.Sequential(model, nn.Linear(3, 3)) if isinstance(model, nn.Linear) and loss is not pairs else model
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    with watching(whole, run_path, facts=("gradient_noise",)):
        loss(whole).backward()
        optimizer.step()
    assert facts(run_path, "gradient_noise") == []


def test_values_that_are_not_finite_give_no_fact(run_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, run_path, facts=("gradient_noise",)):
        (model(torch.full((4, 6), float("inf"))).square().sum()).backward()
        optimizer.step()
    assert facts(run_path, "gradient_noise") == []


def test_steps_between_samples_grow_with_the_run() -> None:
    steps = [0]
    while steps[-1] < 10_000:
        steps.append(next_after(0, steps[-1]))
    apart = np.diff(steps)
    assert apart.min() == 2
    assert apart.max() == 64
    assert (np.diff(apart) >= 0).all()


@pytest.mark.parametrize(("samples", "micro_batches"), [(4, 1), (64, 1), (1024, 1), (16, 4)])
def test_the_noise_scale_in_samples_is_that_of_the_task_at_any_batch_size(
    run_path: Path, samples: int, micro_batches: int
) -> None:
    """A linear regression whose weights stay at zero: mean and covariance of its gradients are known."""
    torch.manual_seed(1)
    features, target = 8, torch.full((8,), 1.0)
    model = nn.Linear(features, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(model, run_path, facts=("gradient_noise",)):
        for _ in range(300):
            for _ in range(micro_batches):
                inputs = torch.randn(samples, features)
                targets = (inputs @ target + 2 * torch.randn(samples))[:, None]
                (F.mse_loss(model(inputs), targets) / micro_batches).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = facts(run_path, "gradient_noise")
    scale = sum(fact["noise"] for fact in found) / sum(fact["signal"] for fact in found)
    # Gradient -2 y x of a sample, with Isserlis' theorem for its second moment: trace / |mean|^2.
    size = float(target @ target)
    truth = (features * (size + 4) + size) / size
    assert scale == pytest.approx(truth, rel=0.25)
