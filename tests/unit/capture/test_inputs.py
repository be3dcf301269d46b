"""Inputs of modules and models, of functional activations, and gradients with respect to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captured_parts import Stage
from torch_hooks import pre_hooks_on_all_modules, tensor_hooks
from watchglass.capture.pytorch.tensors.functional_activations import FunctionalActivations
from watchglass.capture.pytorch.tensors.input_gradients import InputGradients
from watchglass.capture.pytorch.tensors.inputs import Inputs
from watchglass.capture.pytorch.tensors.module_entry import ModuleEntry
from watchglass.records import Role

PARTS = (ModuleEntry, Inputs, FunctionalActivations, InputGradients)


class Functional(nn.Module):
    """Uses an activation as a function, in a chosen way."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(3, 2)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))  # type: ignore[no-any-return]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def test_every_module_s_input_is_saved_as_it_was_given(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(3, 2)))
    with Stage(run_path, PARTS, model, collections=["inputs"]) as stage:
        stage.call(model, x)
    linear = model[0](x).detach()
    assert stage.names == ["0.input.0", "1.input.0", "2.0.input.0", "2.input.0", "input.0"]
    assert torch.equal(stage.only("input.0"), x)
    # It overwrites its input: that must have been read before.
    assert torch.equal(stage.only("1.input.0"), linear)
    assert torch.equal(stage.only("2.0.input.0"), linear.relu())
    assert stage.role("1.input.0") is Role.INPUT
    assert stage.tags("1.input.0") == ("relu_input",)


def test_nested_and_keyword_arguments_of_the_model_are_its_inputs(run_path: Path, x: Tensor) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, batch: dict[str, Any], *, mask: Tensor) -> Tensor:
            return self.layer(batch["pair"][1]) * mask  # type: ignore[no-any-return]

    model = Model()
    with Stage(run_path, PARTS, model, collections=["model_input"]) as stage:
        stage.call(model, {"pair": (x, x + 1), "n": 3}, mask=torch.ones(2))
    assert stage.names == ["input.0.pair.0", "input.0.pair.1", "input.mask"]
    assert stage.tags("input.mask") == ("model_input",)


@pytest.mark.parametrize(
    ("given", "tags"),
    [
        (torch.zeros(2, 3, 4, 4), ("model_input", "input_image")),
        (torch.zeros(2, 7, dtype=torch.long), ("model_input", "input_sequence")),
        (torch.zeros(2, 7), ("model_input",)),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), ("model_input",)),
    ],
)
def test_images_and_sequences_are_recognised_by_their_form(
    run_path: Path, given: Tensor, tags: tuple[str, ...]
) -> None:
    model = nn.Identity()
    with Stage(run_path, PARTS, model, collections=[tags[-1]]) as stage:
        stage.call(model, given)
    assert stage.tags("input.0") == tags


def test_a_collection_by_tag_saves_only_what_carries_it(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 3), nn.Tanh(), nn.ReLU())
    with Stage(run_path, PARTS, model, collections=["sigmoid_input", "tanh_input"]) as stage:
        stage.call(model, x)
    assert stage.names == ["1.input.0", "3.input.0"]
    assert torch.equal(stage.only("1.input.0"), model[0](x))


def test_a_second_model_and_a_wrapped_one_are_named_as_themselves(run_path: Path, x: Tensor) -> None:
    class DataParallel(nn.Module):
        """Known as a wrapper by its name."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)  # type: ignore[no-any-return]

    first, second = nn.Linear(4, 2), nn.Linear(4, 3)
    wrapped = DataParallel(second)
    with Stage(run_path, PARTS, first, wrapped, collections=["inputs"]) as stage:
        stage.call(first, x)
        stage.call(wrapped, x + 1)
    assert stage.names == ["input.0", "model_2.input.0"]
    assert torch.equal(stage.only("model_2.input.0"), x + 1)


def test_a_forward_that_raises_leaves_no_hook_for_the_steps_after_it(run_path: Path, x: Tensor) -> None:
    class Raising(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    model = nn.Sequential(nn.Linear(4, 4), Raising())
    with Stage(run_path, PARTS, model, collections=["inputs"]) as stage:
        with pytest.raises(RuntimeError, match="no"):
            stage.call(model, x)
        assert pre_hooks_on_all_modules()
        saved = len(stage.saving.tensors["0.input.0"])
        stage.hook.port.clock.close()
        model[0](x)
        assert not pre_hooks_on_all_modules()
        assert len(stage.saving.tensors["0.input.0"]) == saved


@pytest.mark.parametrize("collections", [["weights", "outputs"], None])
def test_no_hook_is_there_where_nothing_asks(run_path: Path, x: Tensor, collections: Any) -> None:
    seen: list[int] = []

    class Looking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(pre_hooks_on_all_modules())
            return x

    settings = {} if collections is None else {"collections": collections}
    model = nn.Sequential(Looking())
    with Stage(run_path, PARTS, model, **settings) as stage:
        stage.call(model, x)
    assert seen == [0]
    assert not stage.names


# -- functional activations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "tag"),
    [
        (F.relu, "relu_input"),
        (torch.tanh, "tanh_input"),
        (torch.sigmoid, "sigmoid_input"),
        (lambda y: F.dropout(torch.sigmoid(y.unsqueeze(0)).squeeze(0), 0.5), "sigmoid_input"),
    ],
)
def test_the_input_of_a_functional_activation_is_what_the_module_before_returned(
    run_path: Path, x: Tensor, act: Any, tag: str
) -> None:
    model = Functional(act)
    with Stage(run_path, PARTS, model, collections=[tag]) as stage:
        stage.call(model, x)
    assert stage.names == [f"first.{tag}"]
    assert torch.equal(stage.only(f"first.{tag}"), model.first(x))
    assert stage.tags(f"first.{tag}") == (tag,)
    assert stage.role(f"first.{tag}") is Role.INPUT


def test_a_functional_activation_at_the_end_is_found_in_what_the_model_returns(run_path: Path, x: Tensor) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.head(x).squeeze(-1))

    model = Policy()
    with Stage(run_path, PARTS, model, collections=["tanh_input"]) as stage:
        stage.call(model, x)
    assert torch.equal(stage.only("head.tanh_input"), model.head(x))


@pytest.mark.parametrize("act", [torch.tanh_, lambda y: torch.tanh(y * 2), lambda y: y, lambda y: torch.tanh(y[:, :2])])
def test_an_input_that_is_gone_or_that_no_module_returned_is_not_made_up(run_path: Path, x: Tensor, act: Any) -> None:
    model = Functional(act)
    if act(torch.zeros(1, 3)).shape[1] == 2:
        model.second = nn.Linear(2, 2)
    with Stage(run_path, PARTS, model, collections=["tanh_input"]) as stage:
        stage.call(model, x)
    assert stage.names == []


def test_a_module_s_activation_is_no_functional_one(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    with Stage(run_path, PARTS, model, collections=["tanh_input"]) as stage:
        stage.call(model, x)
    assert stage.names == ["1.input.0"]


def test_inputs_that_come_of_a_functional_relu_are_its_outputs_with_their_units(run_path: Path, x: Tensor) -> None:
    model = Functional(F.relu)
    with Stage(run_path, PARTS, model, collections=["inputs", "relu_output"]) as stage:
        stage.call(model, x)
        units = stage.units()
    assert stage.tags("second.input.0") == ("relu_output",)
    assert len(stage.saving.tensors["second.input.0"]) == 1
    assert [flags.tolist() for _, _, flags in units] == [(model.first(x).relu() == 0).all(0).tolist()]
    modules = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with Stage(run_path, PARTS, modules, collections=["inputs"]) as stage:
        stage.call(modules, x)
    assert stage.tags("2.input.0") == ()


# -- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscale", [True, False])
def test_the_gradient_of_an_input_that_requires_one_is_saved_unscaled(run_path: Path, x: Tensor, unscale: bool) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    wrapped = torch.amp.GradScaler.scale
    x.requires_grad_()
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    with Stage(run_path, PARTS, model, collections=["input_gradients"]) as stage:
        scaler.scale(stage.call(model, x).square().sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        stage.update(optimizer)
        assert torch.equal(stage.only("gradient/input.0"), expected)
        assert stage.role("gradient/input.0") is Role.GRADIENT
        assert stage.tags("gradient/input.0") == ("input_gradients",)
        # Nothing of ours stays on the script's own tensor.
        assert not tensor_hooks(x)
        assert not stage.facts
        stage.call(model, x).square().sum().backward()
        stage.update(optimizer)
        assert not torch.equal(stage.saving.tensors["gradient/input.0"][1] * 8, expected)
    assert torch.amp.GradScaler.scale is wrapped


def test_backwards_through_one_forward_add_up_and_micro_batches_do_not(run_path: Path, x: Tensor) -> None:
    model = nn.Linear(4, 3)
    with Stage(run_path, PARTS, model, collections=["input_gradients"]) as stage:
        for _ in range(2):
            given = x.clone().requires_grad_()
            output = stage.call(model, given)
            output.sum().backward(retain_graph=True)
            output.sum().backward()
        stage.update(torch.optim.SGD(model.parameters(), lr=0.1))
    first, second = stage.saving.tensors["gradient/input.0"]
    assert torch.equal(first, second)
    assert torch.equal(first, given.grad)  # type: ignore[arg-type]


def test_an_input_without_gradient_is_refused_once_with_a_cure_and_left_alone(run_path: Path, x: Tensor) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    plain = nn.Linear(4, 3)
    with Stage(run_path, PARTS, model, plain, collections=["input_gradients"]) as stage:
        for _ in range(2):
            stage.call(plain, x).sum().backward()
            stage.update(torch.optim.SGD(plain.parameters(), lr=0.1))
        stage.call(model, torch.tensor([1, 2])).sum().backward()
        stage.update(torch.optim.SGD(model.parameters(), lr=0.1))
    assert not x.requires_grad
    assert x.grad is None
    ((kind, source, data),) = stage.facts
    assert (kind, source) == ("input_gradients_unavailable", "gradient/model_2.input.0")
    assert "requires_grad_()" in data.what_to_try
    assert not stage.names


def test_hooks_on_inputs_of_a_step_that_never_updates_are_gone_with_the_hook(run_path: Path, x: Tensor) -> None:
    model = nn.Linear(4, 3)
    x.requires_grad_()
    with Stage(run_path, PARTS, model, collections=["input_gradients"]) as stage:
        stage.call(model, x)
        assert tensor_hooks(x)
    assert not tensor_hooks(x)
