"""What watching does grows linearly with the number of modules and parameters, also in the first steps.

Counted in calls of functions, which no other load on the machine changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from calls import profiled
from train_twice import EVERYTHING
from watchglass.capture.pytorch import PyTorchAdapter

pytestmark = pytest.mark.own_process

SMALL, TIMES = 20, 4
STEPS = 14


class Wide(nn.Module):
    """Many parameters in one module."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(size)])

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.stack(list(self.weights)).sum(0)


class Nested(nn.Module):
    """Each module holds a layer and the next module."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.next = Nested(size - 1) if size > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.next(self.layer(x))  # type: ignore[no-any-return]


def flat(size: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(2, 2) for _ in range(size)])


MODELS: dict[str, Callable[[int], nn.Module]] = {"flat": flat, "wide": Wide, "nested": Nested}


class Counted:
    """Calls of functions of ours and of what they call."""

    calls = 0


@contextmanager
def counted() -> Iterator[Counted]:
    found = Counted()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" or event == "c_call":
            found.calls += 1

    with profiled(count):
        yield found


def calls(path: Path | None, model: nn.Module, *, discovered: bool, **settings: Any) -> list[int]:
    """Calls made by each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.0, foreach=False)
    hook = None
    if path is not None and discovered:
        hook = watchglass.Hook(path, strict=True, **settings)
        PyTorchAdapter(hook.port, discover=True)
    elif path is not None:
        hook = watchglass.watch(model, run=path, strict=True, **settings)
    inputs, made = torch.ones(4, 2), []
    try:
        for _ in range(STEPS):
            with counted() as step:
                optimizer.zero_grad()
                F.mse_loss(model(inputs), inputs).backward()
                optimizer.step()
            made.append(step.calls)
    finally:
        if hook is not None:
            hook.close()
    return made


@pytest.mark.parametrize("everything", [False, True], ids=["default", "everything"])
@pytest.mark.parametrize("discovered", [False, True], ids=["given", "discovered"])
@pytest.mark.parametrize("kind", MODELS)
def test_each_step_costs_linearly_more(tmp_path: Path, kind: str, discovered: bool, everything: bool) -> None:
    settings: dict[str, Any] = {"save_interval": 4, **({"collections": EVERYTHING} if everything else {})}
    small, large = (
        calls(tmp_path / str(size), MODELS[kind](size), discovered=discovered, **settings)
        for size in (SMALL, SMALL * TIMES)
    )
    # Nothing of a step grows faster than the model: a quadratic part would be four times as much again.
    assert [(one, other) for one, other in zip(small, large, strict=True) if other > 1.6 * TIMES * one] == []


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_a_compiled_function_are_found_in_linear_time(kind: str) -> None:
    from watchglass.capture.pytorch.modules.module_tree import Parents

    found = []
    for size in (SMALL, SMALL * TIMES):
        parents = Parents()
        model = MODELS[kind](size)
        for module in model.modules():
            for name, child in module.named_children():
                parents.note(module, name, child)
            for name, parameter in module.named_parameters(recurse=False):
                parents.note_parameter(module, name, parameter)
        with counted() as looking:
            assert parents.owners(model.parameters()) == [model]
        with counted() as walking:  # which takes PyTorch longer the deeper a model is
            assert list(model.parameters())
        found.append(looking.calls - walking.calls)
    assert found[1] < 1.6 * TIMES * found[0]
