"""Facts about updates and running statistics: ``update_sample`` and ``running_statistics``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from facts_of import batch, classifier, facts, facts_by_step, watching
from watchglass.capture.facts.update_samples import chosen, next_after
from watchglass.capture.pytorch import PyTorchAdapter

Optimizer = torch.optim.Optimizer


def samples(
    run: Path, make: Callable[[Any], Optimizer], steps: int = 10, model: nn.Module | None = None, closure: bool = False
) -> list[dict[str, Any]]:
    """Samples of a short training run."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) if model is None else model
    optimizer = make(model.parameters())

    def loss() -> Tensor:
        inputs, labels = batch()
        optimizer.zero_grad()
        value = F.cross_entropy(model(inputs.to(next(model.parameters()).dtype)).float(), labels)
        value.backward()
        return value

    with watching(model, run, facts=("update_sample",)):
        for _ in range(steps):
            if closure:
                optimizer.step(loss)  # type: ignore[arg-type]
            else:
                loss()
                optimizer.step()
    return facts(run, "update_sample")


def test_plain_descent_goes_exactly_against_the_gradient(run_path: Path) -> None:
    first, second = samples(run_path, lambda p: torch.optim.SGD(p, lr=0.1))
    assert first["cosine_gradient"] == [-1.0] * 4
    assert first.get("since") is None
    assert second["since"] == 8
    assert first["dims"] == [2, 1, 2, 1]
    assert first["decay"] == [0.0] * 4
    assert all(abs(u / g - 0.1) < 1e-3 for u, g in zip(first["update"], first["gradient"], strict=True))
    assert all(0 < moved < 1 for moved in second["moved"])


def test_an_optimizer_that_climbs_goes_along_it(run_path: Path) -> None:
    (first,) = samples(run_path, lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), steps=1)
    assert first["cosine_gradient"] == [1.0] * 4
    assert first["groups"][0]["maximize"] is True


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_decay_is_compared_with_what_the_data_gives(run_path: Path, optimizer: Any) -> None:
    (first,) = samples(run_path, lambda p: optimizer(p, lr=0.1, weight_decay=100.0), steps=1)
    assert first["groups"][0]["decoupled"] is (optimizer is torch.optim.AdamW)
    assert first["cosine_weight"][0] < -0.9
    assert first["cosine_gradient"][0] < -0.7
    ratio = (
        100 * first["weight"][0] / first["gradient"][0] if optimizer is torch.optim.SGD else 100 * first["weight"][0]
    )
    assert abs(first["decay"][0] / ratio - 1) < 0.01


def test_elements_below_the_precision_of_the_weight_are_counted(run_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(torch.bfloat16)
    found = samples(run_path, lambda p: torch.optim.Adam(p, lr=1e-5), model=model)
    assert found[0]["dtype"] == ["bfloat16"] * 4
    assert found[-1]["unchanged"][0] > 0.8
    assert found[-1]["unmoved"][0] > 0.8


def test_second_moments_are_compared_with_epsilon(run_path: Path) -> None:
    (first,) = samples(run_path, lambda p: torch.optim.Adam(p, lr=1e-3, eps=10.0), steps=1)
    assert first["below_epsilon"] == [1.0] * 4
    assert first["zero_moment"] == [0.0] * 4


def test_gradients_are_compared_with_second_moments(run_path: Path) -> None:
    """An average over all steps so far does not follow a loss that grows at each step."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.9999))
    inputs, labels = torch.randn(8, 6), torch.arange(8) % 3
    with watching(model, run_path, facts=("update_sample",)):
        for step in range(9):
            optimizer.zero_grad()
            (10.0**step * F.cross_entropy(model(inputs), labels)).backward()
            optimizer.step()
    first, last = (fact["gradient_over_moment"] for fact in facts(run_path, "update_sample"))
    assert np.allclose(first, 1, atol=1e-3)
    # The mean of nine squares, of which the last is 99 % of the sum.
    assert np.allclose(last, 0.99**0.5 * 3, atol=1e-2)


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, torch.optim.SGD])
def test_a_closure_is_sampled_from_the_weights_before_it(run_path: Path, optimizer: Any) -> None:
    found = samples(run_path, lambda p: optimizer(p, lr=0.1), steps=3, closure=True)
    assert all(cosine < 0 for cosine in found[0]["cosine_gradient"])


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.RMSprop(p),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.RAdam(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.ASGD(p),
    ],
)
def test_every_optimizer_descends(run_path: Path, make: Any) -> None:
    (first,) = samples(run_path, make, steps=1)
    assert all(cosine < 0 for cosine in first["cosine_gradient"])


def test_frozen_and_sparse_parameters_are_left_out(run_path: Path) -> None:
    model = nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, run_path, facts=("update_sample",)):
        F.cross_entropy(model(torch.arange(8).reshape(4, 2)), torch.arange(4) % 3).backward()
        optimizer.step()
    (found,) = facts(run_path, "update_sample")
    assert found["tensors"] == ["2.weight", "2.bias"]


def test_samples_are_few_and_spread() -> None:
    steps, step = [], 0
    while step < 5000:
        steps.append(step)
        step = next_after(0, step)
    assert len(steps) <= 90
    assert len([step for step in steps if step < 100]) >= 6
    assert chosen([2, 1] * 3) == list(range(6))
    many = chosen([2, 1] * 100)
    assert len(many) == 32
    assert sum(index % 2 == 0 for index in many) == 24
    assert len(chosen([1] * 100)) == 32


def test_running_statistics_that_follow(run_path: Path) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, run_path, facts=("running_statistics",)):
        for number in range(9):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(batch()[0])
    found = facts_by_step(run_path, "running_statistics")
    assert list(found) == [0, 1, 3, 7]
    (last,) = found[7]["modules"]
    assert last["module"] == "1"
    assert last["batches"] == 8
    assert last["momentum"] == 0.1
    assert not last["initial"]
    assert last["training"]
    assert last["mean_off"] < 1
    assert 0.2 < last["variance_ratio"] < 5
    (evaluated,) = facts(run_path, "running_statistics")[-1]["modules"]
    assert not evaluated["training"]
    assert evaluated.get("mean_off") is None
    assert evaluated["moved"] > 0


def test_running_statistics_that_stay(run_path: Path) -> None:
    model = classifier()
    model[1].momentum = 0.0  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, run_path, facts=("running_statistics",)):
        for number in range(2):
            F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
            optimizer.step()
    assert [fact["modules"][0]["initial"] for fact in facts(run_path, "running_statistics")] == [True, True]


def test_calls_of_a_teacher_count_as_no_evaluations(run_path: Path) -> None:
    model, teacher = classifier(), classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.Hook(run=run_path, strict=True, facts=("running_statistics",)) as hook:
        PyTorchAdapter(hook.port, discover=True)
        for number in range(6):
            inputs, labels = batch(number)
            with torch.no_grad():
                wanted = teacher(inputs).softmax(1)
            output = model(inputs)
            optimizer.zero_grad()
            (F.cross_entropy(output, labels) + F.mse_loss(output.softmax(1), wanted)).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(batch()[0])
    assert not facts(run_path, "running_statistics")[-1]["model_training"], "that of the first evaluation"
