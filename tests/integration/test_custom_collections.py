"""Collections that a user makes up: which tensors each selector brings, and at which steps, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from limited import PLENTY, watching_within
from watchglass import Collection, Hook, Mode, Run, open_run
from watchglass.config import MODE_NAMES

#: Recorded at every step, whatever is asked for.
SCALARS = {"loss", "loss/cross_entropy", "accuracy", "gradient_norm", "learning_rate"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.act = nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.linear(x)))  # type: ignore[no-any-return]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def made() -> tuple[Network, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Network()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(number: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(number))
    return inputs, inputs[:, :3].argmax(1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    inputs, labels = batch(number)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def captured(run: Run) -> set[str]:
    return set(run.tensor_names()) - SCALARS


def of_parameters(*names: str) -> set[str]:
    return {kind + name for name in names for kind in ("", "gradient/", "update/", "optimizer/momentum_buffer/")}


def around(*modules: str) -> set[str]:
    return {f"{module}.{end}" for module in modules for end in ("input.0", "output")}


LINEARS = ("blocks.0.linear", "blocks.1.linear")
LEAVES = ("weight", "bias")
ALL_PARAMETERS = [name for name, _ in Network().named_parameters()]

#: What selects, and all tensors that are to be there for it; no others may be.
SELECTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a regular expression": (
        {"include_regex": (r"^blocks\.1\..*bias$",)},
        {"blocks.1.linear.bias", "blocks.1.norm.bias"},
    ),
    "a regular expression that is searched": (
        {"include_regex": (r"norm\.weight",)},
        of_parameters("blocks.0.norm.weight", "blocks.1.norm.weight"),
    ),
    "several regular expressions": (
        {"include_regex": ("^update/stem", r"head\.input")},
        {"update/stem.weight", "update/stem.bias", "head.input.0"},
    ),
    "a module": (
        {"modules": ("stem",)},
        of_parameters("stem.weight", "stem.bias") | around("stem"),
    ),
    "a module with what is in it": (
        {"modules": ("blocks.1",)},
        of_parameters(*(f"blocks.1.{part}.{leaf}" for part in ("linear", "norm") for leaf in LEAVES))
        # A container returns what its last child returned: that is kept once.
        | around(*(f"blocks.1.{part}" for part in ("linear", "norm", "act"))) | {"blocks.1.input.0"},
    ),
    "modules by a pattern": (
        {"modules": ("blocks.*.linear",)},
        of_parameters(*(f"{module}.{leaf}" for module in LINEARS for leaf in LEAVES)) | around(*LINEARS),
    ),
    "a type of modules": ({"module_types": ("Tanh",)}, around("blocks.0.act", "blocks.1.act")),
    "a user's own type of modules": ({"module_types": ("Block",)}, around("blocks.0", "blocks.1")),
    "a role": ({"roles": ("update",)}, {f"update/{name}" for name in ALL_PARAMETERS}),
    "two roles": (
        {"roles": ("bias", "prediction")},
        {name for name in ALL_PARAMETERS if name.endswith("bias")} | {"prediction"},
    ),
    "names": (
        {"tensors": ("head.weight", "gradient/stem.bias", "blocks.0.act.output")},
        {"head.weight", "gradient/stem.bias", "blocks.0.act.output"},
    ),
    "a name or a regular expression": (
        {"tensors": ("head.weight",), "include_regex": ("^gradient/head",)},
        {"head.weight", "gradient/head.weight", "gradient/head.bias"},
    ),
    "a module and a role, both": (
        {"modules": ("blocks",), "roles": ("gradient",)},
        {f"gradient/{name}" for name in ALL_PARAMETERS if name.startswith("blocks")},
    ),
    "a type, a role and an expression, all": (
        {"module_types": ("Linear",), "roles": ("output",), "include_regex": ("^blocks",)},
        {f"{module}.output" for module in LINEARS},
    ),
}  # fmt: skip


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_collection_of_ones_own_holds_what_it_selects_and_nothing_else(tmp_path: Path, selection: str) -> None:
    selectors, expected = SELECTIONS[selection]
    model, optimizer = made()
    mine = Collection("mine", save_raw=True, save_interval=1, **selectors)
    weights: dict[int, dict[str, Tensor]] = {}
    with watchglass.watch(model, run=tmp_path / "run", strict=True, collections=[mine]):
        for number in range(3):
            weights[number] = {name: each.detach().clone() for name, each in model.named_parameters()}
            train(model, optimizer, number)
    run = open_run(tmp_path / "run")
    assert captured(run) == expected
    assert set(run.tensor_names(collection="mine")) == expected
    for name in expected:
        # Momentum is there once the first update has made it.
        assert run.tensor(name).steps()[-2:] == [1, 2], name
        if name in weights[2]:
            np.testing.assert_array_equal(run.tensor(name).value(2), weights[2][name].numpy())


def test_selectors_narrow_a_built_in_collection(tmp_path: Path) -> None:
    model, optimizer = made()
    collections = [Collection("gradients", modules=("head",)), Collection("outputs", module_types=("LayerNorm",))]
    with watchglass.watch(model, run=tmp_path / "run", strict=True, collections=collections, save_interval=1):
        train(model, optimizer, 0)
    expected = {"gradient/head.weight", "gradient/head.bias", "blocks.0.norm.output", "blocks.1.norm.output"}
    assert captured(open_run(tmp_path / "run")) == expected


def test_two_collections_with_settings_of_their_own_share_a_tensor(tmp_path: Path) -> None:
    model, optimizer = made()
    collections = [
        Collection("often", modules=("stem",), roles=("weight", "bias"), save_interval=2),
        Collection("whole", tensors=("stem.weight", "head.weight"), save_interval=3, save_raw=True),
    ]
    with watchglass.watch(model, run=tmp_path / "run", strict=True, collections=collections):
        for number in range(7):
            train(model, optimizer, number)
    run = open_run(tmp_path / "run")
    steps = {name: run.tensor(name).steps() for name in captured(run)}
    assert steps == {"stem.weight": [0, 2, 3, 4, 6], "stem.bias": [0, 2, 4, 6], "head.weight": [0, 3, 6]}
    assert sorted(run.tensor("stem.weight").values()) == [0, 3, 6]
    assert not run.tensor("stem.bias").values()
    assert run.tensor_names(collection="often") == ["stem.weight", "stem.bias"]


# -- steps -------------------------------------------------------------------------------------------------------------

STEPS = 12
#: A setting given alone, and the steps of twelve that are kept for it. In training the budget keeps all of the first
#: sixteen; in other modes all are kept, but where steps are listed only those.
ALONE: dict[str, tuple[Any, list[int], list[int]]] = {
    "save_interval": (5, [0, 5, 10], [0, 5, 10]),
    "start_step": (4, list(range(4, STEPS)), list(range(4, STEPS))),
    "end_step": (3, [0, 1, 2], [0, 1, 2]),
    "save_steps": ([2, 7], list(range(STEPS)), [2, 7]),
}


def predict(hook: Hook, model: nn.Module) -> None:
    with hook.step("predict"), torch.no_grad():
        model(batch(0)[0])


def evaluate(hook: Hook, model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(batch(0)[0])
    model.train()


OTHER_MODES: dict[str, Callable[[Hook, nn.Module], None]] = {"eval": evaluate, "predict": predict}


def steps_of(path: Path, collection: Collection, train_steps: int = STEPS, **settings: Any) -> dict[str, list[int]]:
    """Steps at which an output was kept, by mode: a prediction and an evaluation follow on each of twelve updates."""
    model, optimizer = made()
    with watching_within(PLENTY, model, path, collections=[collection], **settings) as hook:
        for number in range(train_steps):
            train(model, optimizer, number)
            for other in OTHER_MODES.values() if number < STEPS else ():
                other(hook, model)
    run = open_run(path)
    assert run.steps() == list(range(train_steps))
    assert run.steps(Mode.EVAL) == run.steps(Mode.PREDICT) == list(range(STEPS))
    if "head.output" not in run.tensor_names():
        return {name: [] for name in MODE_NAMES}
    return {name: run.tensor("head.output").steps(mode) for name, mode in MODE_NAMES.items()}


@pytest.mark.parametrize("place", ["collection", "training"])
@pytest.mark.parametrize("mode", MODE_NAMES)
@pytest.mark.parametrize("setting", ALONE)
def test_a_setting_of_steps_alone_holds_for_the_mode_that_it_is_given_for(
    tmp_path: Path, setting: str, mode: str, place: str
) -> None:
    value, in_training, in_others = ALONE[setting]
    given: dict[str, Any] = {"modes": {mode: {setting: value}}}
    own, general = (given, {}) if place == "collection" else ({}, given)
    found = steps_of(tmp_path / "run", Collection("outputs", **own), **general)
    expected = {"train": list(range(STEPS)), "eval": [], "predict": []}
    expected[mode] = in_training if mode == "train" else in_others
    assert found == expected


@pytest.mark.parametrize("place", ["collection", "training"])
@pytest.mark.parametrize("setting", ALONE)
def test_a_setting_of_steps_for_no_mode_is_that_of_training_and_what_named_modes_fall_back_on(
    tmp_path: Path, setting: str, place: str
) -> None:
    value, in_training, in_others = ALONE[setting]
    given = {setting: value, "modes": {"eval": {}}}
    own, general = (given, {}) if place == "collection" else ({}, given)
    found = steps_of(tmp_path / "run", Collection("outputs", **own), **general)
    assert found == {"train": in_training, "eval": in_others, "predict": []}


def test_listed_steps_are_kept_beside_those_that_the_budget_keeps(tmp_path: Path) -> None:
    collection = Collection("outputs", save_steps=(5, 21, 33))
    # A share that no capture fits into: what the allowance pays for is every fourth step from 32 on.
    found = steps_of(tmp_path / "run", collection, train_steps=40, overhead_budget=1e-9)
    assert found["train"] == [*range(34), 36]


def test_a_collections_settings_come_before_those_of_the_run_one_by_one(tmp_path: Path) -> None:
    general: dict[str, Any] = {"save_interval": 2, "start_step": 3, "modes": {"eval": {"save_interval": 4}}}
    own: dict[str, Any] = {"save_interval": 3, "modes": {"predict": {"start_step": 0, "end_step": 7}}}
    found = steps_of(tmp_path / "run", Collection("outputs", **own), **general)
    # Of eval the collection says nothing by name: what it says for all modes is still more its own.
    assert found == {"train": [3, 6, 9], "eval": [3, 6, 9], "predict": [0, 3, 6]}
