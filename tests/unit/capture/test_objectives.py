"""Which backwards the gradients of each model come from."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.losses.objective import Objectives


class Loop:
    """Two models, as of a GAN, each with an optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = [nn.Linear(3, 3), nn.Linear(3, 1)]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in self.models]
        self.objectives = Objectives()
        for number, model in enumerate(self.models):
            tree: Any = SimpleNamespace(parameters=lambda model=model: list(model.parameters()), number=number)
            self.objectives.follow(tree)

    def backward(self, value: float, loss: Tensor, *, models: tuple[int, ...] = ()) -> None:
        """A backward that is noted under this value."""
        self.objectives.begin(value, 1.0, plain=True)
        loss.backward()
        self.objectives.end(models)

    def step(self, number: int) -> dict[int, list[float]]:
        """An optimizer steps; returns the losses of its gradients by model."""
        optimizer = self.optimizers[number]
        found = self.objectives.of(optimizer)
        optimizer.step()
        self.objectives.updated(optimizer)
        return {model: [loss.value for loss in objective.losses] for model, objective in found.items()}

    def made(self) -> Tensor:
        output: Tensor = self.models[0](torch.ones(2, 3))
        return output

    def judged(self, given: Tensor) -> Tensor:
        output: Tensor = self.models[1](given).sum()
        return output


def to_none(loop: Loop) -> None:
    loop.optimizers[0].zero_grad()


def to_zero(loop: Loop) -> None:
    loop.optimizers[0].zero_grad(set_to_none=False)


def clipped(loop: Loop) -> None:
    torch.nn.utils.clip_grad_norm_(loop.models[0].parameters(), 1e-3)


def replaced(loop: Loop) -> None:
    for parameter in loop.models[0].parameters():
        assert parameter.grad is not None
        parameter.grad = 0.5 * parameter.grad


def nothing(loop: Loop) -> None:
    pass


@pytest.mark.parametrize(
    ("between", "expected"),
    [(nothing, [1.0, 2.0]), (clipped, [1.0, 2.0]), (replaced, [1.0, 2.0]), (to_none, [2.0]), (to_zero, [2.0])],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_losses_count_until_their_gradients_are_cleared(between: Callable[[Loop], None], expected: list[float]) -> None:
    loop = Loop()
    loop.backward(1.0, loop.made().sum())
    between(loop)
    loop.backward(2.0, loop.made().square().sum())
    assert loop.step(0) == {0: expected}


def test_used_gradients_are_of_no_loss_even_if_they_are_not_cleared() -> None:
    loop = Loop()
    for value in (1.0, 2.0):
        loop.backward(value, loop.made().sum())
        assert loop.step(0) == {0: [value]}


def test_models_that_take_turns_have_their_own_losses() -> None:
    loop = Loop()
    for value in range(3):
        fake = loop.made()
        loop.optimizers[1].zero_grad()
        loop.backward(value, loop.judged(fake.detach()))
        assert loop.step(1) == {1: [value]}
        loop.optimizers[0].zero_grad()
        loop.backward(10 + value, loop.judged(fake))
        assert loop.step(0) == {0: [10 + value]}


def test_gradients_of_the_other_turn_that_are_not_cleared_count() -> None:
    loop = Loop()
    loop.backward(1.0, loop.judged(loop.made()))
    assert loop.step(0) == {0: [1.0]}
    loop.backward(2.0, loop.judged(torch.ones(2, 3)))
    assert loop.step(1) == {1: [1.0, 2.0]}


def test_a_backward_whose_gradients_are_not_seen_counts_for_its_models() -> None:
    loop = Loop()
    loop.objectives.begin(1.0, 1.0, plain=True)
    loop.objectives.end({0})
    assert [each.value for each in loop.objectives.take()[0].losses] == [1.0]


def test_a_gradient_that_goes_during_a_backward_has_changed() -> None:
    """As with an optimizer that steps and clears inside it."""
    loop = Loop()
    loop.backward(1.0, loop.made().sum())
    loop.objectives.begin(2.0, 1.0, plain=True)
    loop.models[0].zero_grad()
    loop.objectives.end(())
    assert [each.value for each in loop.objectives.take()[0].losses] == [1.0, 2.0]


@pytest.mark.parametrize(("clear", "expected"), [(True, [2.0]), (False, [0.75, 2.0])])
def test_backwards_that_were_not_followed_are_restored(clear: bool, expected: list[float]) -> None:
    loop = Loop()
    loop.made().sum().backward()
    loop.objectives.restore(loop.optimizers[0], 0.75, 2.0, 2)
    if clear:
        loop.optimizers[0].zero_grad()
    loop.backward(2.0, loop.made().sum())
    assert loop.objectives.backwards == 3
    assert loop.step(0) == {0: expected}
