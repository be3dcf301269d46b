"""A model that two frameworks know: the one that stands lower in the table owns its steps, PyTorch keeps silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from framework_around_pytorch import Model, Outer
from watchglass import Run, open_run
from watchglass.capture import FRAMEWORKS, Entry, owner_of
from watchglass.config import SessionConfig
from watchglass.session import current_hook, on_framework_imported


@pytest.fixture
def launched(tmp_path: Path, launched_with: Callable[[SessionConfig], None]) -> Iterator[Path]:
    """A process of ``watchglass run`` that has imported PyTorch and the framework around it."""
    FRAMEWORKS[Outer.name] = Entry("framework_around_pytorch:Outer")
    config = SessionConfig(run=str(tmp_path / "run"), strict=True, save_interval=1, planned_steps=100)
    launched_with(config)
    on_framework_imported("torch")
    yield tmp_path / "run"
    hook = current_hook()
    if hook is not None:
        hook.close()
    FRAMEWORKS.pop(Outer.name, None)


def finished(path: Path) -> Run:
    hook = current_hook()
    assert hook is not None
    hook.close()
    return open_run(path)


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by hand"])
def test_the_outer_framework_owns_the_steps(launched: Path, by_hand: bool) -> None:
    model = Model()
    watchglass.watch(model)
    losses: list[float] = []
    model.fit(7, losses, by_hand=by_hand)
    run = finished(launched)
    assert run.steps() == list(range(7))
    assert run.scalars("loss")[1].tolist() == losses
    assert sorted(run.tensor_names()) == ["loss", "outer/body.weight"], "PyTorch's adapter has recorded something"
    assert run.steps(watchglass.Mode.EVAL) == []


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by hand"])
def test_it_is_not_watched_by_pytorch_either_if_it_is_not_given_to_watch(launched: Path, by_hand: bool) -> None:
    Model().fit(3, [], by_hand=by_hand)
    hook = current_hook()
    assert hook is not None
    assert not hook.started


def test_the_table_decides(launched: Path) -> None:
    model = Model()
    owner = owner_of(model)
    assert owner is not None
    assert owner.name == Outer.name
    del FRAMEWORKS[Outer.name]
    model.fit(4, [])
    run = finished(launched)
    assert run.steps() == list(range(4))
    assert "gradient/body.weight" in run.tensor_names()


def test_other_models_of_pytorch_are_watched_beside_it(launched: Path) -> None:
    outer, inner = Model(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    watchglass.watch(outer)
    found = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(inner(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
        loss.backward()
        optimizer.step()
        found.append(loss.item())

    losses: list[float] = []
    outer.fit(20, losses, step)
    run = finished(launched)
    assert run.steps() == list(range(40))
    both = [each for pair in zip(losses, found, strict=True) for each in pair]
    assert run.scalars("loss")[1].tolist() == pytest.approx(both)
    assert run.tensor("gradient/weight").steps() == list(range(1, 40, 2))
    assert not [name for name in run.tensor_names() if "/body" in name and "outer" not in name]
