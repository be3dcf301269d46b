"""How many steps a training run means to take, read from what a script has, which may be of any kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from watchglass.capture.facts.initial_weights import initialization
from watchglass.capture.pytorch.saving.reduce import symmetry_of
from watchglass.capture.pytorch.step.planned_steps import planned_steps
from watchglass.records import facts


class Refusing(dict[str, Any]):
    """A configuration whose values are missing: to ask for them is an error."""

    def get(self, key: str, default: Any = None) -> Any:
        if key == "max_steps":
            return 30
        raise KeyError(f"missing mandatory value: {key}")


class Proxy:
    """Stands for something that is not there."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("working outside of its context")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("working outside of its context")


class Endless(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0

    def __len__(self) -> int:
        raise NotImplementedError("unknown length")


def test_a_number_is_found_past_objects_that_cannot_be_read() -> None:
    args, cfg = Proxy(), Refusing()
    num_steps = Proxy()
    found = planned_steps(inspect.currentframe())
    assert found == facts.PlannedSteps(30, "cfg.max_steps")
    del args, cfg, num_steps


def test_a_loader_of_no_length_is_passed_over() -> None:
    def script() -> Any:
        epochs, train_loader, loader = 3, DataLoader(Endless()), DataLoader([0] * 8, batch_size=2)  # type: ignore[arg-type]
        model = Proxy()
        found = planned_steps(inspect.currentframe())
        del epochs, train_loader, loader, model
        return found

    assert script() == facts.PlannedSteps(12, "epochs x len(loader)")


class Unreadable(torch.Tensor):
    """A weight that nothing can be computed of."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("dim", "__get__", "shape"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise TypeError("not of this kind")


def test_a_weight_that_cannot_be_read_leaves_the_others_their_numbers() -> None:
    strange = torch.ones(3, 2).as_subclass(Unreadable)
    weights = {"strange": strange, "plain": nn.Parameter(torch.eye(3))}
    read = {name: (tuple(weight.shape), symmetry_of(weight)) for name, weight in weights.items()}
    tensors = initialization(read, None).tensors
    assert tensors["strange"] == facts.InitialWeight((3, 2), 2, 3)
    assert (tensors["plain"].std or 0) > 0


def test_a_constant_weight_has_no_spread() -> None:
    weight = torch.full((300, 70), 0.1)
    described = initialization({"flat": (weight.shape, symmetry_of(weight))}, None).tensors["flat"]
    assert (described.constant, described.std) == (True, 0.0)
