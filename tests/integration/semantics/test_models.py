"""Models of every kind: what is recorded of them under which name, and that nothing notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from train_twice import ALL, STEPS, Stack, Watch, batch, l2, simply, train, trained_twice
from watchglass import Mode, open_run

# -- parameters that are not all alike ---------------------------------------------------------------------------------


def test_frozen_parameters_have_weights_and_neither_gradients_nor_updates(tmp_path: Path) -> None:
    def make() -> nn.Module:
        model = Stack()
        model.first.requires_grad_(False)
        return model

    run = trained_twice(tmp_path, simply(make))
    assert run.steps() == ALL
    assert {"first.weight", "second.weight"} <= set(run.tensor_names(role="weight"))
    assert not [name for name in run.tensor_names() if name.startswith(("gradient/first", "update/first"))]
    assert list(l2(run, "update/second.weight")) == list(l2(run, "gradient/second.weight")) == ALL


def test_parameters_that_thaw_and_freeze_in_the_middle(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Stack()
        model.first.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            model.first.requires_grad_(8 <= number < 16)
            seen.append(train(model, optimizer, number))
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/first.weight")) == list(range(8, 16))
    assert list(l2(run, "gradient/second.weight")) == ALL


def test_tied_weights_are_one_tensor_with_the_gradient_of_both_uses(tmp_path: Path) -> None:
    norms: list[float] = []

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(torch.tanh(self.encode(x)))[:, :4]

    def training(watch: Watch) -> Any:
        norms.clear()
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            seen.append(train(model, optimizer, number))
            norms.append(float(model.decode.weight.grad.double().norm()))
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.tensor_names(role="weight") == ["encode.weight"]
    np.testing.assert_allclose(list(l2(run, "gradient/encode.weight").values()), norms, rtol=1e-12)
    assert {"encode.output", "decode.output"} <= set(run.tensor_names(role="output"))


PARAMETRIZED: dict[str, tuple[Callable[[nn.Linear], Any], set[str]]] = {
    "weight norm": (
        parametrizations.weight_norm,
        {"gradient/first.parametrizations.weight.original0", "gradient/first.parametrizations.weight.original1"},
    ),
    "orthogonal": (parametrizations.orthogonal, {"gradient/first.parametrizations.weight.original"}),
    "spectral norm": (parametrizations.spectral_norm, {"gradient/first.parametrizations.weight.original"}),
}


@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_parametrized_weights_are_recorded_as_what_the_optimizer_changes(tmp_path: Path, kind: str) -> None:
    parametrized, expected = PARAMETRIZED[kind]

    def make() -> nn.Module:
        model = Stack()
        parametrized(model.first)
        return model

    run = trained_twice(tmp_path, simply(make))
    assert run.steps() == ALL
    gradients = {name for name in run.tensor_names(role="gradient") if "first" in name and "weight" in name}
    assert gradients == expected
    for name in expected:
        assert list(l2(run, name)) == ALL


def test_weights_that_are_parametrized_while_training_goes_on(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            if number == 12:
                parametrizations.weight_norm(model.second)
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            if number == 18:
                parametrize.remove_parametrizations(model.second, "weight")
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            seen.append(train(model, optimizer, number))
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/second.weight")) == [*range(12), *range(18, STEPS)]
    assert list(l2(run, "gradient/second.parametrizations.weight.original1")) == list(range(12, 18))


def test_lazy_modules_are_known_from_when_they_have_parameters(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4))
        # A lazy parameter stays the same object when it gets its values.
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        return [train(model, optimizer, number) for number in ALL], model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert set(run.tensor_names(role="weight")) == {"0.weight", "1.weight", "3.weight"}
    for name in ("gradient/0.weight", "update/1.weight", "3.output"):
        assert list(l2(run, name)) == ALL
    assert run.tensor("0.weight").info.shape == (16, 12)


# -- weights from elsewhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_weights_loaded_in_the_middle_are_those_recorded_from_then_on(tmp_path: Path, assign: bool) -> None:
    norms: list[float] = []

    def training(watch: Watch) -> Any:
        norms.clear()
        model = Stack()
        saved = {name: value.detach() * 0.5 for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            if number == 12:
                model.load_state_dict(saved, assign=assign)
                if assign:  # the parameters are others now
                    optimizer = torch.optim.SGD(model.parameters(), 0.05)
            norms.append(float(model.second.weight.detach().double().norm()))
            seen.append(train(model, optimizer, number))
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    np.testing.assert_allclose(list(l2(run, "second.weight").values()), norms, rtol=1e-12)
    assert norms[12] < 0.7 * norms[11]
    for name in ("gradient/second.weight", "update/second.weight", "gradient/first.bias"):
        assert list(l2(run, name)) == ALL


def test_a_model_that_changes_its_dtype_keeps_its_names(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Stack()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            if number == 12:
                model.to(torch.float64)
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs.to(model.head.weight.dtype)), labels)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    for name in ("second.weight", "gradient/second.weight", "update/second.weight", "second.output"):
        assert list(l2(run, name)) == ALL


def test_an_optimizer_that_is_replaced_goes_on_counting(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Stack()
        watch(model)
        seen = []
        for number in ALL:
            if number % 8 == 0:
                optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            seen.append(train(model, optimizer, number))
        return seen, model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert [run.scalars("optimizer/step/head.weight")[1][step] for step in (0, 7, 8, 15, 16)] == [1, 8, 1, 8, 1]


def test_several_models_are_distinguished(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        generator, critic = Stack(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        average = Stack()
        for_generator = torch.optim.Adam(generator.parameters(), 0.01, (0.5, 0.9))
        for_critic = torch.optim.Adam(critic.parameters(), 0.01, (0.5, 0.9))
        watch(generator, critic)
        seen = []
        for number in ALL:
            real, _ = batch(number)
            fake = generator(real)
            for_critic.zero_grad()
            loss = critic(fake.detach()).mean() - critic(real[:, :4]).mean()
            loss.backward()
            for_critic.step()
            if number % 3 == 2:
                for_generator.zero_grad()
                other = -critic(fake).mean()
                other.backward()
                for_generator.step()
                seen.append(other.item())
                with torch.no_grad():
                    for mean, value in zip(average.parameters(), generator.parameters(), strict=True):
                        mean.lerp_(value, 0.1)
                    average(real)
            seen.append(loss.item())
        return seen, generator, critic, average

    run = trained_twice(tmp_path, training, discovered=False)
    assert run.steps() == list(range(STEPS + STEPS // 3))
    of_critic, of_generator = l2(run, "gradient/model_2.0.weight"), l2(run, "gradient/first.weight")
    assert sorted([*of_critic, *of_generator]) == run.steps()
    assert list(of_generator) == list(range(3, STEPS + STEPS // 3, 4))
    # What the generator returned in a step of the critic is part of its own step, if that comes next.
    assert list(l2(run, "head.output")) == list(of_generator)
    # And if it does not, that is no evaluation.
    assert run.steps(Mode.EVAL) == []
    assert not [name for name in run.tensor_names() if name.startswith("model_3")], "the average is not watched"
    found = open_run(tmp_path / "found")
    assert found.steps() == run.steps(), "nor is it evaluated, where models are found by their calls"
    assert not [name for name in found.tensor_names() if name.startswith("model_3")]


@pytest.mark.parametrize("interval", [2, 10])
def test_models_that_are_trained_in_turn_are_captured_in_turn(tmp_path: Path, interval: int) -> None:
    def training(watch: Watch) -> Any:
        generator, critic = Stack(), nn.Linear(4, 1)
        for_generator = torch.optim.Adam(generator.parameters(), 0.01)
        for_critic = torch.optim.Adam(critic.parameters(), 0.01)
        watch(generator, critic)
        for number in ALL:
            real, _ = batch(number)
            fake = generator(real)
            for_critic.zero_grad()
            (critic(fake.detach()).mean() - critic(real[:, :4]).mean()).backward()
            for_critic.step()
            for_generator.zero_grad()
            (-critic(fake).mean()).backward()
            for_generator.step()
        return generator, critic

    run = trained_twice(tmp_path, training, save_interval=interval)
    assert run.steps() == list(range(2 * STEPS))
    assert run.steps(Mode.EVAL) == []
    # Each by its own steps: those of the critic are the even ones.
    planned = list(range(0, STEPS, interval))
    for name in ("gradient/first.weight", "first.weight", "update/first.weight"):
        assert [step for step in l2(run, name) if step > 3] == [2 * step + 1 for step in planned if step > 1]
    assert [step for step in l2(run, "gradient/model_2.weight") if step > 3] == [
        2 * step for step in planned[1:] if step > 1
    ]
