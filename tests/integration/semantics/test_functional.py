"""``torch.func``, higher derivatives, and losses that no loss function has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, jacrev, vmap

from train_twice import ALL, STEPS, Watch, batch, l2, losses, trained_twice
from watchglass import Mode


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


def test_gradients_that_torch_func_computes_are_those_of_the_update(tmp_path: Path) -> None:
    norms: list[float] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        seen = []

        def loss_of(parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, parameters, (inputs,)), labels)

        for number in ALL:
            inputs, labels = batch(number)
            gradients, loss = grad_and_value(loss_of)(dict(model.named_parameters()), inputs, labels)
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name]
            norms.append(float(gradients["0.weight"].detach().double().norm()))
            optimizer.step()
            seen.append(loss.item())
        return seen, model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert run.steps(Mode.EVAL) == []
    np.testing.assert_allclose(list(l2(run, "gradient/0.weight").values()), norms, rtol=1e-12)
    assert list(l2(run, "update/0.weight")) == ALL


def test_gradients_of_each_sample_by_vmap(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)

        def loss_of(parameters: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, parameters, (row[None],)), label[None])

        for number in ALL:
            inputs, labels = batch(number)
            parameters = {name: value.detach() for name, value in model.named_parameters()}
            of_each = vmap(grad(loss_of), (None, 0, 0))(parameters, inputs, labels)
            for name, parameter in model.named_parameters():
                clipped = of_each[name] / of_each[name].flatten(1).norm(dim=1).clamp_min(1).view(
                    -1, *[1] * parameter.dim()
                )
                parameter.grad = clipped.mean(0)
            optimizer.step()
        return model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/0.weight")) == list(l2(run, "update/2.bias")) == ALL


def test_jacobians_and_gradient_penalties_beside_an_ordinary_loss(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            inputs.requires_grad_()
            optimizer.zero_grad()
            scores = model(inputs)
            loss = F.cross_entropy(scores, labels)
            (slope,) = torch.autograd.grad(scores.sum(), inputs, create_graph=True)
            total = loss + 0.1 * slope.square().mean()
            total.backward()
            optimizer.step()
            if number % 6 == 5:
                seen.append(vmap(jacrev(model))(inputs.detach()[:2]))
            seen.append(total.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/0.weight")) == ALL
    # What the backward starts from is the loss; what a loss function returned is recorded beside it.
    assert len(losses(run)) == STEPS
    assert all(a > b for a, b in zip(losses(run), run.scalars("loss/cross_entropy")[1], strict=True))


def test_meta_learning_takes_steps_inside_a_step(tmp_path: Path) -> None:
    """As MAML does: inner updates of functional parameters, one outer update of the model's."""

    def training(watch: Watch) -> Any:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        seen = []
        for number in ALL:
            optimizer.zero_grad()
            total = torch.zeros(())
            for task in range(2):
                fast = dict(model.named_parameters())
                for part in range(2):
                    inputs, labels = batch(100 * number + 10 * task + part)
                    loss = F.cross_entropy(functional_call(model, fast, (inputs,)), labels)
                    gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                    fast = {
                        name: value - 0.1 * slope for (name, value), slope in zip(fast.items(), gradients, strict=True)
                    }
                inputs, labels = batch(100 * number + 10 * task + 5)
                total = total + F.cross_entropy(functional_call(model, fast, (inputs,)), labels)
            total.backward()
            optimizer.step()
            seen.append(total.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert run.steps(Mode.EVAL) == []
    assert list(l2(run, "gradient/0.weight")) == ALL
    assert len(losses(run)) == STEPS
