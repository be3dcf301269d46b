"""What a run holds of tensors beyond weights, gradients, updates and outputs, and that no training run notices it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import Mode, Run, open_run

EVERYTHING = (
    "all", "optimizer_variables", "inputs", "labels", "predictions", "model_input", "input_image", "input_sequence",
    "input_gradients", "relu_input", "relu_output", "tanh_input", "sigmoid_input", "attention", "router", "logsumexp",
)  # fmt: skip
WIDTH, HEADS, EXPERTS, TOKENS, CLASSES = 8, 2, 3, 6, 4


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.gate(x).softmax(-1).topk(1, -1)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        picked = outputs.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, WIDTH)).squeeze(-2)
        return shares * picked


class Language(nn.Module):
    """Embedding, two kinds of attention, functional activations, a mixture of experts, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
        self.squash = nn.Linear(WIDTH, WIDTH)
        self.bend = nn.Linear(WIDTH, WIDTH)
        self.squeeze = nn.Linear(WIDTH, WIDTH)
        self.mixture = Mixture()
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        x = x + self.attend(x, x, x, attn_mask=mask)[0]
        x = self.layer(x)
        x = torch.sigmoid(self.squash(x)) * torch.tanh(self.bend(x)) + x
        x = self.relu(self.mixture(F.relu(self.squeeze(x))) + 0.1)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.conv(x)))
        return self.head(F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.2, self.training))  # type: ignore[no-any-return]


def batches(kind: str, steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    labels = torch.randint(0, CLASSES, (steps, 5), generator=generator)
    if kind == "language":
        return list(zip(torch.randint(0, 11, (steps, 5, TOKENS), generator=generator), labels, strict=True))
    images = torch.randn(steps, 5, 3, 6, 6, generator=generator)
    return [(image.requires_grad_(), label) for image, label in zip(images, labels, strict=True)]


def train(model: nn.Module, data: list[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for inputs, labels in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["language", "image"])
@pytest.mark.parametrize("settings", [{"save_raw": True, "save_interval": 1}, {"save_interval": 3}])
def test_with_every_part_on_a_training_run_is_the_same_bit_for_bit(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    def run(watch: bool) -> tuple[list[float], list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = Language() if kind == "language" else Image()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
        data = batches(kind, 12)
        if watch:
            with watchglass.watch(model, run=tmp_path / "run", strict=True, collections=EVERYTHING, **settings):
                losses = train(model, data, optimizer)
        else:
            losses = train(model, data, optimizer)
        state = [value for each in optimizer.state.values() for value in each.values()]
        gradients = [inputs.grad for inputs, _ in data if inputs.grad is not None]
        return losses, [*model.state_dict().values(), *state, *gradients], torch.get_rng_state()

    expected, watched = run(False), run(True)
    assert watched[0] == expected[0]
    assert len(watched[1]) == len(expected[1])
    assert all(map(torch.equal, watched[1], expected[1]))
    assert torch.equal(watched[2], expected[2])
    found = open_run(tmp_path / "run")
    assert found.steps() == list(range(12))
    assert not found.facts("capture_fault")
    some = {"language": "attend.attention_entropy.0", "image": "gradient/input.0"}[kind]
    assert found.tensor(some).steps() == list(range(0, 12, settings["save_interval"]))


@pytest.fixture
def language(tmp_path: Path) -> tuple[Run, Language, torch.optim.Optimizer, list[tuple[Tensor, Tensor]]]:
    """One watched step of the language model, and the model and optimizer after it."""
    torch.manual_seed(3)
    model = Language()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = batches("language", 1)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=EVERYTHING, save_raw=True):
        train(model, data, optimizer)
    return open_run(tmp_path / "run"), model, optimizer, data


def test_a_run_holds_the_tensors_under_their_names(language: Any) -> None:
    run, model, optimizer, ((tokens, labels),) = language
    state = optimizer.state[model.head.weight]
    np.testing.assert_array_equal(run.tensor("optimizer/exp_avg/head.weight").value(0), state["exp_avg"].numpy())
    assert run.scalars("optimizer/step/head.weight")[1].tolist() == [1.0]
    np.testing.assert_array_equal(run.tensor("input.0").value(0), tokens.numpy())
    np.testing.assert_array_equal(run.tensor("label").value(0), labels.numpy())
    np.testing.assert_array_equal(run.tensor("prediction").value(0), run.tensor("head.output").value(0))
    prediction = torch.from_numpy(run.tensor("prediction").value(0).copy())
    np.testing.assert_array_equal(run.tensor("logsumexp").value(0), prediction.logsumexp(1).numpy())
    np.testing.assert_array_equal(run.tensor("embed.input.0").value(0), tokens.numpy())
    np.testing.assert_array_equal(
        np.maximum(run.tensor("relu.input.0").value(0), 0), run.tensor("relu.output").value(0)
    )
    assert run.tensor("mixture.gate.router_load").value(0).sum() == pytest.approx(1)
    assert run.tensor("mixture.gate.router_logits").info.shape == (5, TOKENS, EXPERTS)
    for module in ("attend", "layer.self_attn"):
        for head in range(HEADS):
            entropy = run.tensor(f"{module}.attention_entropy.{head}")
            assert 0 <= entropy.reduction(0, "min") <= entropy.reduction(0, "max") <= np.log(TOKENS) + 1e-6
            assert entropy.info.module == module
    # A causal query at the first place sees one key only.
    assert run.tensor("attend.attention_entropy.0").reduction(0, "min") == pytest.approx(0, abs=1e-6)


def test_tensors_are_filed_by_role_and_tag(language: Any) -> None:
    run = language[0]
    roles = {"optimizer/exp_avg/head.weight": "optimizer_state", "label": "label", "prediction": "prediction"}
    for name, role in roles.items():
        assert name in run.tensor_names(role=role)
    tags = {
        "input.0": "input_sequence", "relu.input.0": "relu_input", "bend.tanh_input": "tanh_input",
        "squash.sigmoid_input": "sigmoid_input", "attend.attention_entropy.1": "attention",
        "mixture.gate.router_load": "router", "logsumexp": "logsumexp",
    }  # fmt: skip
    for name, tag in tags.items():
        assert tag in run.tensor(name).info.collections, name


def test_a_collection_by_itself_brings_what_it_asks_for_and_nothing_else(tmp_path: Path) -> None:
    expected = {
        "optimizer_variables": lambda name: name.startswith("optimizer/"),
        "labels": lambda name: name == "label",
        "predictions": lambda name: name == "prediction",
        "model_input": lambda name: name == "input.0",
        "input_sequence": lambda name: name == "input.0",
        "relu_input": lambda name: name in ("relu.input.0", "squeeze.relu_input", "layer.linear1.relu_input"),
        "relu_output": lambda name: name in ("relu.output", "mixture.gate.input.0", "layer.linear2.input.0"),
        "tanh_input": lambda name: name == "bend.tanh_input",
        "sigmoid_input": lambda name: name == "squash.sigmoid_input",
        "attention": lambda name: ".attention_" in name,
        "router": lambda name: ".router_" in name,
        "logsumexp": lambda name: name == "logsumexp",
        "inputs": lambda name: ".input." in name or name.startswith("input."),
    }
    for collection, belongs in expected.items():
        model = Language()
        path = tmp_path / collection
        with watchglass.watch(model, run=path, save_interval=1, collections=[collection], strict=True):
            train(model, batches("language", 2), torch.optim.Adam(model.parameters()))
        run = open_run(path)
        names = [name for name in run.tensor_names() if run.tensor(name).info.role.value not in ("loss", "metric")]
        assert names, collection
        assert [name for name in names if not belongs(name)] == [], collection


def test_gradients_of_images_are_those_of_the_script_and_refusals_are_facts(tmp_path: Path) -> None:
    model, data = Image(), batches("image", 2)
    with watchglass.watch(
        model, run=tmp_path / "run", save_interval=1, collections=["input_gradients", "input_image"], save_raw=True
    ):
        train(model, data, torch.optim.SGD(model.parameters(), lr=0.1))
        blind = nn.Linear(4, CLASSES)
    run = open_run(tmp_path / "run")
    for step, (image, _) in enumerate(data):
        np.testing.assert_array_equal(run.tensor("gradient/input.0").value(step), image.grad.numpy())  # type: ignore[union-attr]
        np.testing.assert_array_equal(run.tensor("input.0").value(step), image.detach().numpy())
    with watchglass.watch(blind, run=tmp_path / "blind", save_interval=1, collections=["input_gradients"]):
        train(blind, [(torch.ones(2, 4), torch.tensor([0, 1]))] * 3, torch.optim.SGD(blind.parameters(), lr=0.1))
    (fact,) = open_run(tmp_path / "blind").facts("input_gradients_unavailable")
    assert fact.source == "gradient/input.0"


@dataclasses.dataclass
class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """As Hugging Face's outputs: a dataclass that is a dictionary of the fields that are not None."""

    loss: Any = None
    logits: Any = None
    hidden_states: Any = None

    def __post_init__(self) -> None:
        self.update({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def test_models_that_take_a_mapping_and_return_an_output_object(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, batch: Any = None, *, input_ids: Tensor, labels: Tensor) -> Output:
            hidden = self.embed(input_ids).mean(1)
            logits = self.head(hidden)
            return Output(F.cross_entropy(logits, labels), logits, (hidden, hidden + 1))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=["inputs", "outputs"]):
        for tokens, labels in batches("language", 2):
            optimizer.zero_grad()
            model(collections.UserDict(x=torch.ones(3)), input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
    names = open_run(tmp_path / "run").tensor_names()
    assert {"input.input_ids", "input.labels", "input.0.x", "output.loss", "output.hidden_states.1"} <= set(names)


def test_evaluation_is_captured_where_its_mode_is_named(tmp_path: Path) -> None:
    model = Language()
    modes = {"eval": {"save_interval": 1}}
    names = ["labels", "inputs", "router"]
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=names, modes=modes, strict=True):
        train(model, batches("language", 2), torch.optim.Adam(model.parameters()))
        with torch.no_grad():
            for tokens, labels in batches("language", 3):
                F.cross_entropy(model(tokens), labels)
    run = open_run(tmp_path / "run")
    for name in ("label", "input.0", "mixture.gate.router_load", "head.input.0"):
        assert run.tensor(name).steps(Mode.EVAL) == [0, 1, 2], name


def _closure_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], None]:
    def step(inputs: Tensor, labels: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)

    return step


def test_lbfgs_closures_and_two_optimizers_on_one_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    inputs, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    with watchglass.watch(model, run=tmp_path / "a", save_interval=1, collections=["optimizer_variables"], strict=True):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        step, counts = _closure_step(model, optimizer), []
        for _ in range(3):
            step(inputs, labels)
            counts.append(next(iter(optimizer.state.values()))["n_iter"])
    run = open_run(tmp_path / "a")
    assert run.tensor("optimizer/d").steps() == [0, 1, 2]
    assert run.scalars("optimizer/n_iter")[1].tolist() == counts

    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    muon = getattr(torch.optim, "Muon", torch.optim.SGD)(matrices, lr=0.01, momentum=0.9)
    adam = torch.optim.Adam(others)
    with watchglass.watch(model, run=tmp_path / "b", save_interval=1, collections=["optimizer_variables"], strict=True):
        for _ in range(2):
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            muon.step()
            adam.step()
    run = open_run(tmp_path / "b")
    assert run.tensor("optimizer/momentum_buffer/0.weight").steps() == [0, 1]
    assert run.tensor("optimizer/exp_avg/0.bias").steps() == [0, 1]
    assert "optimizer/exp_avg/0.weight" not in run.tensor_names()
