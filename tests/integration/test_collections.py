"""Collections: each built-in one, selected by its name, brings what the name says, in training and in other modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import Collection, Mode, Run, open_run
from watchglass.config import BUILT_IN_COLLECTIONS

BATCH, CLASSES, WIDTH, EXPERTS, HEADS, TOKENS = 4, 3, 8, 3, 2, 7
#: Recorded at every step, whatever is asked for.
SCALARS = {"loss", "loss/cross_entropy", "accuracy", "gradient_norm", "learning_rate"}


class Noting(nn.Module):
    """A model that notes values which nothing else shows, under the names that they should have in a run."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, Tensor] = {}

    def note(self, name: str, value: Tensor) -> Tensor:
        self.notes[name] = value.detach().clone()
        return value


class Convolutions(Noting):
    """Images, a normalisation, ReLU as a module, in place and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.relu(self.norm(self.conv1(x))))
        x = F.relu(self.note("conv2.relu_input", x)).flatten(1)
        return self.head(x)  # type: ignore[no-any-return]

    @staticmethod
    def batch() -> Tensor:
        return torch.randn(BATCH, 3, 8, 8, requires_grad=True)


class Perceptron(Noting):
    """Tanh, sigmoid and ReLU, each as a module and as a function."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(1, 7):
            self.add_module(f"fc{number}", nn.Linear(4, 4))
        self.tanh, self.sigmoid, self.relu = nn.Tanh(), nn.Sigmoid(), nn.ReLU()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.fc3(self.sigmoid(self.fc2(self.tanh(self.fc1(x))))))
        x = torch.tanh(self.note("fc4.tanh_input", self.fc4(x)))
        x = torch.sigmoid(self.note("fc5.sigmoid_input", self.fc5(x)))
        return self.head(F.relu(self.note("fc6.relu_input", self.fc6(x))))  # type: ignore[no-any-return]

    @staticmethod
    def batch() -> Tensor:
        return torch.randn(BATCH, 4)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top_k = 1
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.gate(x).softmax(-1).topk(1, -1)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        picked = outputs.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, WIDTH)).squeeze(-2)
        return shares * picked


class Tokens(Noting):
    """Sequences of tokens: an embedding, attention, a recurrent module, a mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.recur = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.mixture = Mixture()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        self._attention(x)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x = self.recur(x)[0]
        logits = self.mixture.gate(x)
        load = F.one_hot(logits.argmax(-1), EXPERTS).float().mean((0, 1))
        self.note("mixture.gate.router_load", load)
        return self.head(self.mixture(x).mean(1))  # type: ignore[no-any-return]

    def _attention(self, x: Tensor) -> None:
        """Logits of some sequences, as many as are examined, one largest and one entropy per query."""
        projected = F.linear(x[:4], self.attend.in_proj_weight, self.attend.in_proj_bias)
        query, key, _ = projected.unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        logits = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        for head in range(HEADS):
            self.note(f"attend.attention_logits_max.{head}", logits[:, head].amax(-1))
            entropy = torch.distributions.Categorical(logits=logits[:, head]).entropy()
            self.note(f"attend.attention_entropy.{head}", entropy)

    @staticmethod
    def batch() -> Tensor:
        return torch.randint(0, 11, (BATCH, TOKENS))


MODELS: dict[str, type[Any]] = {"convolutions": Convolutions, "perceptron": Perceptron, "tokens": Tokens}


def train(model: Noting, optimizer: torch.optim.Optimizer, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The last step's inputs, outputs and labels."""
    for _ in range(steps):
        optimizer.zero_grad()
        inputs, labels = model.batch(), torch.randint(0, CLASSES, (BATCH,))
        outputs = model(inputs)
        F.cross_entropy(outputs, labels).backward()
        optimizer.step()
    return inputs, outputs, labels


def made(kind: str) -> tuple[Noting, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = MODELS[kind]()
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


STEPS = 2


def observed(kind: str) -> dict[str, Tensor]:
    """All tensors of the second step of an unwatched training run, by the names that they should have in a run."""
    model, optimizer = made(kind)
    train(model, optimizer, STEPS - 1)
    found: dict[str, Tensor] = {}
    handles = []

    def given(path: str, arguments: Iterable[Any]) -> None:
        for index, argument in enumerate(arguments):
            found.setdefault(f"{path}input.{index}", argument.detach().clone())

    def returned(path: str, output: Any) -> None:
        for index, value in enumerate(output) if isinstance(output, tuple) else [(-1, output)]:
            if value is not None:
                found[f"{path}output" + (f".{index}" if index >= 0 else "")] = value.detach().clone()

    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        handles.append(module.register_forward_pre_hook(lambda module, args, p=prefix: given(p, args)))
        handles.append(module.register_forward_hook(lambda module, args, output, p=prefix: returned(p, output)))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    inputs, outputs, labels = train(model, optimizer, 1)
    for handle in handles:
        handle.remove()
    found |= before
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f"gradient/{name}"] = parameter.grad
        found[f"update/{name}"] = parameter.detach() - before[name]
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"optimizer/{key}/{name}"] = optimizer.state[parameter][key]
    if inputs.grad is not None:
        found["gradient/input.0"] = inputs.grad
    found |= {"label": labels, "prediction": outputs.detach(), "logsumexp": outputs.detach().logsumexp(1)}
    if isinstance(model, Tokens):
        found["mixture.gate.router_logits"] = found["mixture.gate.output"]
    return found | model.notes


def names(pattern: str) -> Callable[[str], bool]:
    return lambda name: re.fullmatch(pattern, name) is not None


BIAS = r"(.*\.)?((in_proj_)?bias|bias_[hi]h_l0)"
WEIGHT = rf"(?!(gradient|update|optimizer)/)(?!{BIAS}$).*weight(_[hi]h_l0)?"
INPUT, OUTPUT = r"(.*\.)?input\.\d", r"(.*\.)?output(\.\d)?"
#: By collection which of what was observed it holds, whatever the model.
HOLDS: dict[str, Callable[[str], bool]] = {
    "weights": names(WEIGHT),
    "biases": names(rf"(?!(gradient|update|optimizer)/){BIAS}"),
    "gradients": names(r"gradient/(?!input).*"),
    "updates": names(r"update/.*"),
    "optimizer_variables": names(r"optimizer/.*"),
    "inputs": names(rf"(?!gradient/){INPUT}"),
    "outputs": lambda name: name != "output" and names(OUTPUT)(name),
    "layers": lambda name: HOLDS["inputs"](name) or HOLDS["outputs"](name),
    "labels": names("label"),
    "predictions": names("prediction"),
    "model_input": names(r"input\.0"),
    "model_output": names("output"),
    "input_image": names(r"input\.0"),
    "input_sequence": names(r"input\.0"),
    "input_gradients": names(r"gradient/input\.0"),
    "relu_input": names(r".*\.relu_input|relu\.input\.0"),
    "relu_output": names(r"relu\.output|head\.input\.0"),
    "tanh_input": names(r".*\.tanh_input|tanh\.input\.0"),
    "sigmoid_input": names(r".*\.sigmoid_input|sigmoid\.input\.0"),
    "attention": names(r".*\.attention_.*"),
    "router": names(r".*\.router_.*"),
    "float8_casts": lambda name: False,
    "logsumexp": names("logsumexp"),
    "default": lambda name: False,
    "losses": lambda name: False,
    "metrics": lambda name: False,
    "learning_rate": lambda name: False,
}
COMPUTED = ("input_gradients", "relu_input", "tanh_input", "sigmoid_input", "attention", "router", "logsumexp")
HOLDS["all"] = lambda name: (
    name != "output" and not re.fullmatch(r"gradient/input\.0|logsumexp|.*\.(relu|tanh|sigmoid)_input", name)
    and not HOLDS["attention"](name) and not HOLDS["router"](name)
)  # fmt: skip

#: Those that only some of the models have something for.
ONLY = {
    "input_image": ("convolutions",), "input_sequence": ("tokens",), "input_gradients": ("convolutions",),
    "relu_input": ("convolutions", "perceptron"), "relu_output": ("convolutions", "perceptron"),
    "tanh_input": ("perceptron",), "sigmoid_input": ("perceptron",), "attention": ("tokens",), "router": ("tokens",),
}  # fmt: skip

#: Scalars that belong to a collection besides.
OF_EVERY_STEP = {
    "losses": {"loss", "loss/cross_entropy"}, "learning_rate": {"learning_rate"},
    "metrics": {"accuracy", "gradient_norm", "learning_rate"}, "all": SCALARS,
}  # fmt: skip


def captured(run: Run) -> set[str]:
    """Tensors that a run has beyond what every run has, and beyond an optimizer's count of steps."""
    return {name for name in run.tensor_names() if name not in SCALARS and not name.startswith("optimizer/step/")}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("collection", sorted(set(BUILT_IN_COLLECTIONS) - {"feature_importance", "trees"}))
def test_a_built_in_collection_brings_what_its_name_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, collection: str, kind: str
) -> None:
    expected = {name: value for name, value in observed(kind).items() if HOLDS[collection](name)}
    if kind not in ONLY.get(collection, MODELS):
        expected = {}
    model, optimizer = made(kind)
    settings: dict[str, Any] = {"save_interval": 1, "save_raw": True, "strict": True}
    with watchglass.watch(model, run=tmp_path, collections=[collection], **settings):
        train(model, optimizer, STEPS)
    run = open_run(tmp_path)
    assert captured(run) == set(expected)
    for name, value in expected.items():
        found = run.tensor(name).value(1).reshape(value.shape)
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        assert run.tensor(name).steps() == [0, 1]
    scalars = OF_EVERY_STEP.get(collection, set())
    assert set(run.tensor_names(collection=collection)) - expected.keys() - scalars <= {
        f"optimizer/step/{name}" for name, _ in model.named_parameters()
    }
    assert expected.keys() | scalars <= set(run.tensor_names(collection=collection))
    if collection == "optimizer_variables":
        assert all(run.scalars(f"optimizer/step/{n}")[1].tolist() == [1.0, 2.0] for n, _ in model.named_parameters())
    # Those of every step cannot be missed, what is kept by default may well be of no use, and some things are rare.
    silent = collection in (
        "default",
        "all",
        "losses",
        "metrics",
        "learning_rate",
        "relu_output",
        "router",
        "float8_casts",
    )
    assert any("holds nothing" in message for message in caplog.messages) == (not expected and not silent)


def test_every_collection_that_is_computed_is_tested_on_a_model_that_has_it() -> None:
    for collection in COMPUTED:
        assert any(
            HOLDS[collection](name) for kind in ONLY.get(collection, MODELS) for name in observed(kind)
        ), collection  # fmt: skip


def test_what_a_script_saves_is_in_default_or_where_it_says(tmp_path: Path) -> None:
    model, optimizer = made("perceptron")
    with watchglass.watch(model, run=tmp_path, collections=[Collection("mine", tensors=("never",))]):
        for step in range(2):
            watchglass.save_tensor("free", np.full(3, step))
            watchglass.save_tensor("filed", np.full(3, step), "mine")
            train(model, optimizer, 1)
    run = open_run(tmp_path)
    assert captured(run) == {"free", "filed"}
    assert run.tensor_names(collection="default") == ["free", "filed"]
    assert run.tensor_names(collection="mine") == ["filed"]
    assert not {"free", "filed"} & set(run.tensor_names(collection="all"))


# -- modes -------------------------------------------------------------------------------------------------------------

TRAINED = {"weights": "fc1.weight", "gradients": "gradient/fc1.weight", "updates": "update/fc1.weight"}
FORWARD = {"outputs": "fc1.output", "labels": "label", "predictions": "prediction", "inputs": "fc1.input.0"}


def evaluate(model: Noting, batches: int = 1, *, grad: bool = False) -> list[tuple[Tensor, Tensor, Tensor, float]]:
    """What each batch of an evaluation gave: inputs, outputs, labels and loss."""
    found = []
    model.eval()
    with torch.set_grad_enabled(grad):
        for _ in range(batches):
            inputs, labels = model.batch(), torch.randint(0, CLASSES, (BATCH,))
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, labels).item()
            found.append((inputs.detach(), outputs.detach(), labels, loss))
    model.train()
    return found


@pytest.mark.parametrize("places", ["collections", "training"])
def test_evaluations_are_captured_at_their_own_interval_and_hold_what_a_forward_has(
    tmp_path: Path, places: str
) -> None:
    """Every second forward of evaluations, whatever is captured of training."""
    eval_only = {"modes": {"eval": {"save_interval": 2}}, "save_raw": True, "save_interval": 3}
    wanted = (*TRAINED, *FORWARD)
    settings: dict[str, Any] = (
        {"collections": [Collection(name, **eval_only) for name in wanted]}
        if places == "collections"
        else {"collections": wanted, **eval_only}
    )
    model, optimizer = made("perceptron")
    seen = []
    with watchglass.watch(model, run=tmp_path, strict=True, **settings):
        for _ in range(3):
            train(model, optimizer, 2)
            seen += evaluate(model, 3)
    run = open_run(tmp_path)
    assert run.steps(Mode.EVAL) == list(range(9))
    for name in FORWARD.values():
        assert run.tensor(name).steps(Mode.EVAL) == [0, 2, 4, 6, 8], name
        assert run.tensor(name).steps(Mode.TRAIN) == [0, 3], name
    for name in TRAINED.values():
        assert run.tensor(name).steps(Mode.EVAL) == [], name
        assert run.tensor(name).steps(Mode.TRAIN) == [0, 3], name
    for step in (0, 2, 4, 6, 8):
        inputs, outputs, labels, _ = seen[step]
        np.testing.assert_array_equal(run.tensor("input.0").value(step, Mode.EVAL), inputs.numpy())
        np.testing.assert_array_equal(run.tensor("prediction").value(step, Mode.EVAL), outputs.numpy())
        np.testing.assert_array_equal(run.tensor("head.output").value(step, Mode.EVAL), outputs.numpy())
        np.testing.assert_array_equal(run.tensor("label").value(step, Mode.EVAL), labels.numpy())
    steps, losses = run.scalars("loss", mode=Mode.EVAL)
    assert steps.tolist() == list(range(9)), "of every evaluation, captured or not"
    np.testing.assert_allclose(losses, [loss for *_, loss in seen], rtol=1e-6)


def test_other_settings_of_steps_hold_for_a_mode_as_well(tmp_path: Path) -> None:
    modes: dict[str, Any] = {"eval": {"start_step": 2, "end_step": 6, "save_interval": 2, "save_steps": [7]}}
    model, optimizer = made("perceptron")
    with watchglass.watch(
        model, run=tmp_path, strict=True, collections=[Collection("outputs", modes=modes), "labels"], end_step=0
    ):
        train(model, optimizer, 2)
        evaluate(model, 10)
    run = open_run(tmp_path)
    assert run.tensor("fc1.output").steps(Mode.EVAL) == [2, 4, 7]
    assert "label" not in run.tensor_names()
    assert run.tensor("fc1.output").steps() == []


@pytest.mark.parametrize("grad", [False, True])
def test_evaluations_are_not_captured_unless_a_collection_names_them(tmp_path: Path, grad: bool) -> None:
    """Also not with gradients on, where only in hindsight a forward turns out to be no training run."""
    model, optimizer = made("perceptron")
    with watchglass.watch(model, run=tmp_path, strict=True, save_interval=1, collections=(*TRAINED, *FORWARD)):
        for _ in range(3):
            train(model, optimizer, 2)
            evaluate(model, 3, grad=grad)
    run = open_run(tmp_path)
    assert len(run.steps(Mode.EVAL)) == 9
    assert len(run.scalars("loss", mode=Mode.EVAL)[1]) == 9
    for name in (*TRAINED.values(), *FORWARD.values()):
        assert run.tensor(name).steps(Mode.EVAL) == [], name
        assert run.tensor(name).steps(Mode.TRAIN) == list(range(6)), name


def test_an_evaluation_inside_a_captured_training_step_leaves_the_step_whole(tmp_path: Path) -> None:
    model, optimizer = made("perceptron")
    settings: dict[str, Any] = {"save_interval": 2, "modes": {"eval": {"save_interval": 3}}, "save_raw": True}
    truth = []
    with watchglass.watch(model, run=tmp_path, strict=True, collections=(*TRAINED, *FORWARD), **settings):
        for _ in range(5):
            optimizer.zero_grad()
            inputs, labels = model.batch(), torch.randint(0, CLASSES, (BATCH,))
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, labels)
            loss.backward()
            evaluated = evaluate(model, 2)
            weight = model.fc1.weight.detach().clone()  # type: ignore[union-attr, operator]
            optimizer.step()
            gradient = model.fc1.weight.grad.clone()  # type: ignore[union-attr, operator]
            update = model.fc1.weight.detach() - weight  # type: ignore[operator]
            truth.append((outputs.detach(), labels, weight, gradient, update, loss.item(), evaluated))
    run = open_run(tmp_path)
    assert run.steps() == list(range(5))
    assert run.steps(Mode.EVAL) == list(range(10))
    for step in (0, 2, 4):
        names_ = ("prediction", "label", "fc1.weight", "gradient/fc1.weight", "update/fc1.weight")
        for name, value in zip(names_, truth[step], strict=False):
            np.testing.assert_array_equal(run.tensor(name).value(step), value.numpy(), err_msg=name)
    assert [run.tensor(name).steps() for name in (*TRAINED.values(), *FORWARD.values())] == [[0, 2, 4]] * 7
    np.testing.assert_allclose(run.scalars("loss")[1], [each[5] for each in truth], rtol=1e-6)
    evaluated = [batch for *_, batches in truth for batch in batches]
    for step in (0, 3, 6, 9):
        np.testing.assert_array_equal(run.tensor("prediction").value(step, Mode.EVAL), evaluated[step][1].numpy())
        np.testing.assert_array_equal(run.tensor("label").value(step, Mode.EVAL), evaluated[step][2].numpy())
    assert [run.tensor(name).steps(Mode.EVAL) for name in FORWARD.values()] == [[0, 3, 6, 9]] * 4
    assert [run.tensor(name).steps(Mode.EVAL) for name in TRAINED.values()] == [[]] * 3


@pytest.mark.parametrize("grad", [False, True])
def test_predictions_are_manual_steps_with_what_the_model_does_in_them(tmp_path: Path, grad: bool) -> None:
    model, optimizer = made("perceptron")
    settings: dict[str, Any] = {"save_interval": 2, "modes": {"predict": {"save_interval": 2}}, "save_raw": True}
    seen = []
    with watchglass.watch(model, run=tmp_path, strict=True, collections=(*TRAINED, *FORWARD), **settings) as hook:
        train(model, optimizer, 3)
        for number in range(4):
            with hook.step("predict"), torch.set_grad_enabled(grad):
                inputs = model.batch()
                seen.append((inputs, model(inputs).detach()))
                watchglass.save_scalar("answer", float(number))
        evaluate(model, 2)
        train(model, optimizer, 3)
    run = open_run(tmp_path)
    assert (run.steps(), run.steps(Mode.PREDICT), run.steps(Mode.EVAL)) == (list(range(6)), list(range(4)), [0, 1])
    for name in ("fc1.output", "fc1.input.0"):
        assert run.tensor(name).steps(Mode.PREDICT) == [0, 2], name
        assert run.tensor(name).steps(Mode.EVAL) == [], name
        assert run.tensor(name).steps() == [0, 2, 4], name
    for name in TRAINED.values():
        assert run.tensor(name).steps(Mode.PREDICT) == [], name
        assert run.tensor(name).steps() == [0, 2, 4], name
    for step in (0, 2):
        np.testing.assert_array_equal(run.tensor("input.0").value(step, Mode.PREDICT), seen[step][0].numpy())
        np.testing.assert_array_equal(run.tensor("head.output").value(step, Mode.PREDICT), seen[step][1].numpy())
    assert run.scalars("answer", mode=Mode.PREDICT)[1].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_prediction_inside_a_training_step_leaves_the_step_whole(tmp_path: Path) -> None:
    model, optimizer = made("perceptron")
    with watchglass.watch(model, run=tmp_path, strict=True, save_interval=1, collections=(*TRAINED, *FORWARD)) as hook:
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(model.batch()), torch.zeros(BATCH, dtype=torch.long)).backward()
            with hook.step("predict"), torch.no_grad():
                model(model.batch())
            optimizer.step()
    run = open_run(tmp_path)
    assert (run.steps(), run.steps(Mode.PREDICT), run.steps(Mode.EVAL)) == (list(range(4)), list(range(4)), [])
    for name in (*TRAINED.values(), *FORWARD.values()):
        assert run.tensor(name).steps() == list(range(4)), name
        assert run.tensor(name).steps(Mode.PREDICT) == [], name
