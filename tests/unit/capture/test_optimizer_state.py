"""The state of every optimizer of PyTorch, under its own names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from captured_parts import Stage
from watchglass.capture.pytorch.tensors.optimizer_state import OptimizerState
from watchglass.records import Role

#: What each optimizer needs to keep as much state as it can.
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True},
}
#: State by the names that PyTorch's own ``state_dict`` has, for the first weight of the model.
EXPECTED = {
    "ASGD": {"step", "eta", "mu", "ax"},
    "Adadelta": {"step", "square_avg", "acc_delta"},
    "Adafactor": {"step", "row_var", "col_var"},
    "Adagrad": {"step", "sum"},
    "Adam": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq"},
    "Adamax": {"step", "exp_avg", "exp_inf"},
    "Muon": {"momentum_buffer"},
    "NAdam": {"step", "mu_product", "exp_avg", "exp_avg_sq"},
    "RAdam": {"step", "exp_avg", "exp_avg_sq"},
    "RMSprop": {"step", "square_avg", "momentum_buffer", "grad_avg"},
    "Rprop": {"step", "prev", "step_size"},
    "SGD": {"momentum_buffer"},
    "SparseAdam": {"step", "exp_avg", "exp_avg_sq"},
}

OPTIMIZERS = [
    value
    for name, value in sorted(vars(torch.optim).items())
    if inspect.isclass(value) and issubclass(value, Optimizer) and value is not Optimizer and name != "LBFGS"
]


def matrices(seed: int = 0) -> nn.Module:
    """No biases: Muon takes matrices only."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def stage(run_path: Path) -> Iterator[Any]:
    opened: list[Stage] = []

    def make(*models: nn.Module) -> Stage:
        opened.append(Stage(run_path, [OptimizerState], *models, collections=["optimizer_variables"]))
        return opened[-1]

    yield make
    for each in opened:
        each.__exit__()


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_every_optimizer_shows_its_state_by_its_own_names(kind: Any, stage: Any, inputs: Tensor) -> None:
    sparse = kind.__name__ == "SparseAdam"
    model: nn.Module = nn.Sequential(nn.Embedding(9, 4, sparse=True)) if sparse else matrices()
    optimizer = kind(model.parameters(), **SETTINGS.get(kind.__name__, {}))
    watched = stage(model)
    for _ in range(2):
        watched.train(model, optimizer, torch.tensor([1, 5, 1]) if sparse else inputs, lambda out: out.square().sum())
    state = optimizer.state[model[0].weight]
    known = {key for key, value in state.items() if isinstance(value, (Tensor, int, float))}
    assert known >= EXPECTED.get(kind.__name__, known)
    for key in known:
        name, value = f"optimizer/{key}/0.weight", state[key]
        if isinstance(value, Tensor) and value.dim():
            assert torch.equal(watched.saving.tensors[name][-1], value), name
            assert watched.role(name) is Role.OPTIMIZER_STATE
            assert watched.saving.items[name][1].place.path == "0"
        else:
            assert watched.scalars[name][-1] == float(value), name
    assert {name.split("/")[1] for name in (*watched.names, *watched.scalars)} == known


def test_lbfgs_holds_one_state_for_all_parameters_which_bears_no_ones_name(stage: Any, inputs: Tensor) -> None:
    model = matrices()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3)
    watched = stage(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().sum() + model(inputs).abs().sum()
        loss.backward()
        return loss

    watched.update(optimizer, closure)
    (state,) = optimizer.state.values()
    assert torch.equal(watched.only("optimizer/d"), state["d"])
    assert torch.equal(watched.only("optimizer/old_dirs.0"), state["old_dirs"][0])
    assert len([name for name in watched.names if name.startswith("optimizer/old_dirs")]) == len(state["old_dirs"])
    assert watched.scalars["optimizer/n_iter"] == [state["n_iter"]]
    assert watched.scalars["optimizer/ro.0"] == [float(state["ro"][0])]
    assert not [name for name in (*watched.names, *watched.scalars) if "weight" in name]


def test_nested_state_is_found_and_a_parameter_without_state_is_not_asked_for_any(stage: Any, inputs: Tensor) -> None:
    class Shampooing(Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            first = self.param_groups[0]["params"][0]
            self.state[first] = {"factors": [torch.eye(2), torch.ones(3)], "inner": {"count": 4}, "name": "none"}

    model = matrices()
    optimizer = Shampooing(model.parameters())
    watched = stage(model)
    watched.train(model, optimizer, inputs, lambda out: out.sum())
    assert watched.names == ["optimizer/factors.0/0.weight", "optimizer/factors.1/0.weight"]
    assert watched.scalars == {"optimizer/inner.count/0.weight": [4.0]}
    assert len(optimizer.state) == 1


def test_the_optimizer_inside_another_is_asked_where_the_outer_has_no_state(stage: Any, inputs: Tensor) -> None:
    class Outer(Optimizer):
        def __init__(self, parameters: Any) -> None:
            parameters = list(parameters)
            super().__init__(parameters, {})
            self.optim = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.optim.step()

    model = matrices()
    watched = stage(model)
    watched.train(model, Outer(model.parameters()), inputs, lambda out: out.sum())
    assert watched.names == ["optimizer/momentum_buffer/0.weight", "optimizer/momentum_buffer/2.weight"]


def test_two_optimizers_of_one_parameter_are_distinguished_and_later_ones_take_over(stage: Any, inputs: Tensor) -> None:
    model = matrices()
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=m) for m in (0.9, 0.5))
    watched = stage(model)
    model(inputs).sum().backward()
    watched.call(model, inputs)
    for optimizer in (first, second):
        watched.update(optimizer)
    assert "optimizer/momentum_buffer/0.weight" in watched.names
    assert "optimizer_2/momentum_buffer/0.weight" in watched.names
    watched.train(model, second, inputs, lambda out: out.sum())
    assert len(watched.saving.tensors["optimizer/momentum_buffer/0.weight"]) == 2


def test_nothing_is_examined_where_no_collection_asks(run_path: Path, inputs: Tensor) -> None:
    model = matrices()
    with Stage(run_path, [OptimizerState], model, collections=["weights"]) as watched:
        watched.train(model, torch.optim.Adam(model.parameters()), inputs, lambda out: out.sum())
    assert not watched.names
    assert not watched.scalars
