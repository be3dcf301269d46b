"""A model that two frameworks know: the outer one drives and names, PyTorch records tensors and opens no step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from framework_around_pytorch import Model, OuterLoop
from watchglass import Run, open_run
from watchglass.capture import FRAMEWORKS, Entry, loop_of
from watchglass.config import SessionConfig
from watchglass.session import current_hook, on_framework_imported


@pytest.fixture
def launched(tmp_path: Path, launched_with: Callable[[SessionConfig], None]) -> Iterator[Path]:
    """A process of ``watchglass run`` that has imported PyTorch and the framework around it."""
    FRAMEWORKS[OuterLoop.name] = Entry(
        loop="framework_around_pytorch:OuterLoop", modules="framework_around_pytorch:OuterModules", over=("torch",)
    )
    config = SessionConfig(run=str(tmp_path / "run"), strict=True, save_interval=1, planned_steps=100)
    launched_with(config)
    on_framework_imported("torch")
    yield tmp_path / "run"
    hook = current_hook()
    if hook is not None:
        hook.close()
    FRAMEWORKS.pop(OuterLoop.name, None)


def finished(path: Path) -> Run:
    hook = current_hook()
    assert hook is not None
    hook.close()
    return open_run(path)


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by hand"])
def test_the_outer_loop_opens_the_steps_and_pytorch_records_into_them(launched: Path, by_hand: bool) -> None:
    model = Model()
    watchglass.watch(model)
    losses: list[float] = []
    model.fit(7, losses, by_hand=by_hand)
    run = finished(launched)
    assert run.steps() == list(range(7))
    assert run.steps(watchglass.Mode.EVAL) == []
    assert run.scalars("loss")[1].tolist() == losses
    for name in ("trunk.kernel", "trunk.bias", "classifier.kernel", "classifier.bias"):
        # The first update by hand is known to be one only after its backward.
        steps = list(range(by_hand, 7))
        assert [step for step in run.tensor(f"gradient/{name}").steps() if step in steps] == steps
        assert [step for step in run.tensor(f"update/{name}").steps() if step in steps] == steps
    assert run.tensor("trunk.output").steps() == list(range(7))
    assert run.facts("training_flags")
    assert not [name for name in run.tensor_names() if "body" in name or "head" in name]


def test_gradients_and_updates_are_those_that_pytorch_alone_records(launched: Path, tmp_path: Path) -> None:
    def gradients(run: Run, name: str) -> list[list[float]]:
        tensor = run.tensor(name)
        return [tensor.reductions(each)[1].tolist() for each in ("l2", "min", "max")]

    model, alone = Model(), Model()
    alone.load_state_dict(model.state_dict())
    watchglass.watch(model)
    torch.manual_seed(0)
    model.fit(6, [])
    outer = finished(launched)
    del FRAMEWORKS[OuterLoop.name]
    torch.manual_seed(0)
    with watchglass.watch(alone, run=tmp_path / "alone", save_interval=1, strict=True):
        alone.fit(6, [])
    inner = open_run(tmp_path / "alone")
    for role in ("gradient", "update"):
        assert gradients(outer, f"{role}/trunk.kernel") == gradients(inner, f"{role}/body.weight")


@pytest.mark.parametrize("by_hand", [False, True], ids=["optimizer", "by hand"])
def test_it_is_not_watched_by_pytorch_either_if_it_is_not_given_to_watch(launched: Path, by_hand: bool) -> None:
    Model().fit(3, [], by_hand=by_hand)
    hook = current_hook()
    assert hook is not None
    assert not hook.started


def test_the_table_decides(launched: Path) -> None:
    model = Model()
    driver = loop_of(model, drives=True)
    assert driver is not None
    assert driver.name == OuterLoop.name
    del FRAMEWORKS[OuterLoop.name]
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
    assert run.scalars("loss")[1].tolist() == losses
    assert run.scalars("model_2/loss")[1].tolist() == pytest.approx(found)
    assert run.tensor("gradient/trunk.kernel").steps() == list(range(0, 40, 2))
    assert run.tensor("gradient/model_2.weight").steps() == list(range(1, 40, 2))
