"""Updates by one optimizer, clipped and scaled: what counts as one step, and which gradients are recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from train_twice import ALL, STEPS, Watch, batch, l2, losses, trained_twice


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


# -- one optimizer, stepped plainly ------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd for": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, foreach=False),
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam for": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adagrad fused": lambda p: torch.optim.Adagrad(p, 0.01, fused=True),
    "adam maximize": lambda p: torch.optim.Adam(p, 0.001, maximize=True),
    "adam with the rate as a tensor": lambda p: torch.optim.Adam(p, torch.tensor(0.01)),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "several groups": lambda p: torch.optim.AdamW(
        [{"params": [one], "lr": 0.01 / (index + 1)} for index, one in enumerate(p)], weight_decay=0.1
    ),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_each_update_is_a_step_with_its_gradient_and_what_it_changed(
    tmp_path: Path, make: Callable[[Any], Optimizer]
) -> None:
    norms: list[tuple[float, float]] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        model = network()
        optimizer = make(list(model.parameters()))
        weight: Tensor = model[0].weight
        watch(model)
        seen = []
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            before, gradient = weight.detach().clone(), weight.grad.clone()
            optimizer.step()
            norms.append((float(gradient.double().norm()), float((weight.detach() - before).double().norm())))
            seen.append(loss.item())
        return seen, model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    np.testing.assert_allclose(list(l2(run, "gradient/0.weight").values()), [g for g, _ in norms], rtol=1e-12)
    np.testing.assert_allclose(list(l2(run, "update/0.weight").values()), [u for _, u in norms], rtol=1e-12)


def test_gradients_are_recorded_as_the_optimizer_gets_them_and_that_they_were_clipped_is_a_fact(tmp_path: Path) -> None:
    before: list[float] = []
    after: list[float] = []

    def training(watch: Watch) -> Any:
        before.clear()
        after.clear()
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs) * 5, labels).backward()
            before.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            after.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
            optimizer.step()
        return model, before, after

    run = trained_twice(tmp_path, training)
    assert max(after) < 0.51 < min(before)
    np.testing.assert_allclose(run.scalars("gradient_norm_before_clip")[1], before, rtol=1e-6)
    np.testing.assert_allclose(run.scalars("gradient_norm")[1], after, rtol=1e-6)
    recorded = np.sqrt(sum(np.square(list(l2(run, name).values())) for name in run.tensor_names(role="gradient")))
    np.testing.assert_allclose(recorded, after, rtol=1e-6)
    (first, *_) = run.facts("clip")
    assert (first.data["function"], first.data["max_norm"]) == ("clip_grad_norm_", 0.5)


def test_clipping_by_value_and_manually_are_recorded_as_they_leave_the_gradient(tmp_path: Path) -> None:
    largest: list[float] = []

    def training(watch: Watch) -> Any:
        largest.clear()
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs) * 5, labels).backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
            model[4].bias.grad.mul_(0.5)
            largest.append(float(model[4].bias.grad.abs().max()))
            optimizer.step()
        return model

    run = trained_twice(tmp_path, training)
    np.testing.assert_allclose(run.tensor("gradient/4.bias").reductions("abs_max")[1], largest)
    assert max(run.tensor("gradient/0.weight").reductions("abs_max")[1]) <= 0.05 * (1 + 1e-6)
    assert run.facts("clip")[0].data["clip_value"] == 0.05


# -- scalers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscale", [False, True], ids=["scaled", "unscaled first"])
@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_a_scaler_is_seen_through_and_a_step_it_skips_is_a_step_and_a_fact(
    tmp_path: Path, fused: bool, unscale: bool
) -> None:
    plain: list[float] = []
    plain_losses: list[float] = []
    skipped: list[int] = []

    def training(watch: Watch) -> Any:
        for gathered in (plain, plain_losses, skipped):
            gathered.clear()
        model = network()
        # Not SGD: where its first fused step is skipped, its momentum stays uninitialised memory (PyTorch 2.13).
        optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=fused)
        # The first scales are too large; later the scale grows until it is again.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4)
        watch(model)
        for number in range(STEPS):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels) * 100
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scale, weight = scaler.get_scale(), model[0].weight.detach().clone()
            gradient = model[0].weight.grad.double()
            plain.append(float((gradient if unscale else gradient / scale).norm()))
            scaler.step(optimizer)
            if torch.equal(weight, model[0].weight):
                skipped.append(number)
            scaler.update()
            plain_losses.append(loss.item())
        return plain_losses, model, optimizer, scaler.state_dict()

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert skipped
    assert skipped != ALL
    numbers = {run.global_step(step): step for step in ALL}
    assert [numbers[fact.global_step] for fact in run.facts("step_skipped")] == skipped
    recorded = l2(run, "gradient/0.weight")
    for step in set(ALL) - set(skipped):
        assert recorded[step] == pytest.approx(plain[step], rel=1e-6), step
    assert not run.facts("nonfinite_gradients")
    assert losses(run) == plain_losses
    for step in skipped:
        assert l2(run, "update/0.weight").get(step, 0.0) == 0.0
