"""What is saved of the calls of modules: over PyTorch's modules the same as by PyTorch's own capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import watchglass
from watchglass import Hook, Mode, Role, Run, open_run
from watchglass.capture import modules_of
from watchglass.capture.module_places import Place
from watchglass.capture.saving.module_tensors import ModuleTensors
from watchglass.records import INACTIVE_UNITS, SATURATED_UNITS, ModuleKind

COLLECTIONS = ["inputs", "outputs", "relu_output", "tanh_input"]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    return nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared, nn.Tanh()), nn.Linear(4, 2))


def observed(path: Path, model: nn.Module, x: torch.Tensor) -> Run:
    """The run of an adapter that has only :class:`Modules` and :class:`Arrays`."""
    modules = modules_of(model)
    assert modules is not None
    with Hook(path, save_interval=2, strict=True, collections=COLLECTIONS) as hook:
        tensors = ModuleTensors(hook.port)
        for _ in range(3):
            step = hook.port.begin(Mode.TRAIN)
            if step.due:
                tensors.observe(step.records, modules, model)
            model(x)
            tensors.end()
            hook.port.end(step)
    return open_run(path)


def by_pytorch(path: Path, model: nn.Module, x: torch.Tensor) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watchglass.watch(model, run=path, save_interval=2, strict=True, collections=COLLECTIONS):
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()
    return open_run(path)


def recorded(run: Run) -> dict[str, Any]:
    """By name, steps and statistics, with the units that are inactive or saturated."""
    found: dict[str, Any] = {}
    for name in run.tensor_names():
        if ".input." in name or name.endswith("output") or name == "input.0":
            tensor = run.tensor(name)
            found[name] = [tensor.reductions(each)[1].tolist() for each in ("count", "zero", "min", "max", "l2")]
            found[name].append(tensor.steps())
    return found


def test_names_steps_and_statistics_are_those_of_pytorch_s_capture(tmp_path: Path, model: nn.Module) -> None:
    x = torch.randn(8, 4)
    expected = recorded(by_pytorch(tmp_path / "pytorch", model, x))
    assert "1.output" in expected
    found = recorded(observed(tmp_path / "observed", model, x))
    assert found == expected
    assert found["0.output"][-1] == [0, 2]


def test_nothing_is_observed_between_steps_that_are_due(tmp_path: Path, model: nn.Module) -> None:
    modules = modules_of(model)
    assert modules is not None
    with Hook(tmp_path, save_interval=1, strict=True, collections=COLLECTIONS) as hook:
        tensors = ModuleTensors(hook.port)
        step = hook.port.begin(Mode.TRAIN)
        tensors.observe(step.records, modules, model)
        assert len(torch.nn.modules.module._global_forward_hooks) == 1
        tensors.end()
        assert not torch.nn.modules.module._global_forward_hooks
        tensors.observe(step.records, modules, model)
    assert not torch.nn.modules.module._global_forward_hooks, "still observed after the end of the run"


@pytest.mark.parametrize("kind", [INACTIVE_UNITS, SATURATED_UNITS], ids=["inactive", "saturated"])
def test_units_of_arrays_on_the_host(tmp_path: Path, kind: Any) -> None:
    relu = kind is INACTIVE_UNITS
    values = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]]) if relu else np.array([[20.0, 1.0, 0.0], [-10.0, 0.0, 30.0]])
    with Hook(tmp_path, save_interval=1, strict=True, collections=COLLECTIONS) as hook:
        tensors, step = ModuleTensors(hook.port), hook.port.begin(Mode.TRAIN)
        if relu:
            item = tensors.returned(Place("act", "ReLU", 1, kind=ModuleKind.RECTIFIER), "", values, 2)
        else:
            item = tensors.taken(Place("act", "Tanh", 1), "0", values, 2, ("tanh_input",))
        assert item is not None
        tensors.save(step.records, Role.OUTPUT if relu else Role.INPUT, item)
        [(_, _, units)] = step.records.rows[kind.kind]
        assert units.tolist() == [True, False, False]
        hook.port.end(step)


def test_an_array_that_was_overwritten_is_another_one(tmp_path: Path) -> None:
    values = np.ones((2, 3))
    with Hook(tmp_path, save_interval=1, strict=True, collections=COLLECTIONS) as hook:
        tensors, step = ModuleTensors(hook.port), hook.port.begin(Mode.TRAIN)
        first, second = Place("a", "Dense", 1), Place("b", "Dense", 2)
        assert tensors.returned(first, "", values, 2) is not None
        assert tensors.returned(second, "", values, 2) is None
        assert tensors.returned(second, "", values, 2, version=1) is not None
        hook.port.end(step)
