"""The operations of a program of JAX are those that autograd's graph of the same model in PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from watchglass.capture.facts import forward_layers, loss_terms
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.records import facts

for package in ("jax", "optax", "flax"):
    pytest.importorskip(package, reason="graphs of JAX need JAX, optax and Flax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import linen  # noqa: E402

from watchglass.capture.compiled.collecting import Collected, ObservedLoss, ValuePart  # noqa: E402
from watchglass.capture.compiled.program import ProgramGraph  # noqa: E402
from watchglass.capture.jax.graph import read, shown_by  # noqa: E402


def _graph(loss: Callable[..., Any], parameters: Any, *data: Any) -> ProgramGraph:
    """The graph of a training step, which returns what a twin does."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    known = {f"before/{name}": Collected(ValuePart.BEFORE, name) for name in names}
    known["loss/loss"] = Collected(ValuePart.LOSS, "loss")

    def step(parameters: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        after = jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, parameters, gradients)
        before = zip(names, jax.tree.leaves(parameters), strict=True)
        return after, {"loss/loss": value, **{f"before/{name}": each for name, each in before}}

    traced = jax.jit(step).trace(parameters, *data)
    program = read(traced.jaxpr, traced.out_info, known)
    assert sorted(program.parameters) == sorted(names)
    return program.graph()


def _flax(module: Any, data: Any) -> tuple[Callable[..., Any], Any]:
    """The forward of a module of Flax, and its parameters."""
    variables = module.init(jax.random.key(0), data)
    parameters = variables.pop("params")
    changing = {"mutable": ["batch_stats"]} if variables else {}

    def forward(weights: Any, inputs: Any) -> Any:
        return module.apply({"params": weights, **variables}, inputs, **changing)

    return forward, parameters


def _between(graph: Any) -> list[str]:
    """What lies between layers, without biases, which PyTorch adds in the layer."""
    pairs = forward_layers.described(graph, str).pairs
    return [" ".join(word for word in words.split() if word != "add") for _, _, words in pairs]


def _words(graph: Any) -> list[str]:
    """Operations of the first term of the loss, without biases and the layer."""
    (term, *_) = loss_terms.described(graph, str).terms
    return [each.operation for each in term.operations if each.operation not in ("add", "linear")]


class Convolutional(linen.Module):  # type: ignore[misc]
    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, inputs: Any) -> Any:
        hidden = linen.relu(linen.BatchNorm(use_running_average=False)(linen.Conv(8, (3, 3))(inputs)))
        hidden = linen.max_pool(hidden, (2, 2), (2, 2))
        hidden = linen.LayerNorm()(linen.silu(linen.Dense(16)(hidden.reshape(hidden.shape[0], -1))))
        return linen.Dense(3)(hidden)


class SameInPyTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(128, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 3),
        )  # fmt: skip

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.first(inputs)
        return outputs


def test_layers_and_what_lies_between_them_are_those_of_pytorch() -> None:
    inputs, labels = jnp.ones((4, 8, 8, 3)), jnp.zeros(4, int)
    forward, parameters = _flax(Convolutional(), inputs)

    def loss(weights: Any, inputs: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(forward(weights, inputs)[0], labels).mean()

    graph = _graph(loss, parameters, inputs, labels)
    model = SameInPyTorch()
    value = F.cross_entropy(model(torch.ones(4, 3, 8, 8)), torch.zeros(4, dtype=torch.long))
    known = {id(each): name for name, each in model.named_parameters()}
    one = forward_layers.described(graph, str)
    other = forward_layers.described(Graph(value.grad_fn), lambda each: known[id(each)])
    assert [row[1:] for row in one.layers] == [row[1:] for row in other.layers]
    assert [row[0] for row in one.layers] == ["Conv_0.kernel", "Dense_0.kernel", "Dense_1.kernel"]
    assert _between(graph) == _between(Graph(value.grad_fn)) == ["batch_norm relu max_pool", "silu layer_norm"]
    numbers = "depth", "residuals", "normalizations", "batch_normalizations_count"
    assert [getattr(one, each) for each in numbers] == [getattr(other, each) for each in numbers]
    assert _words(graph) == ["log_softmax", "nll_loss", "mean"]
    assert _words(Graph(value.grad_fn)) == ["log_softmax", "nll_loss"]


def test_a_batch_normalisation_over_few_values_is_named() -> None:
    class Normalised(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, inputs: Any) -> Any:
            return linen.Dense(1)(linen.BatchNorm(use_running_average=False)(linen.Dense(6)(inputs)))

    inputs = jnp.ones((2, 5))
    forward, parameters = _flax(Normalised(), inputs)
    graph = _graph(lambda weights, inputs: (forward(weights, inputs)[0] ** 2).mean(), parameters, inputs)
    (found,) = forward_layers.described(graph, str).batch_normalizations
    assert found == facts.FewNormalized("BatchNorm_0.scale", 2, 2)


def test_a_transformer_has_its_shortcuts_attention_and_embedding() -> None:
    class Block(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, tokens: Any) -> Any:
            hidden = linen.Embed(11, 8)(tokens)
            mask = linen.make_causal_mask(tokens)
            hidden = hidden + linen.MultiHeadDotProductAttention(2)(linen.LayerNorm()(hidden), mask=mask)
            hidden = hidden + linen.Dense(8)(linen.gelu(linen.Dense(16)(linen.LayerNorm()(hidden))))
            return linen.Dense(11)(hidden)

    tokens = jnp.ones((4, 6), int)
    forward, parameters = _flax(Block(), tokens)

    def loss(weights: Any, tokens: Any) -> Any:
        logits = forward(weights, tokens)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    graph = _graph(loss, parameters, tokens)
    found = forward_layers.described(graph, str)
    assert found.layers[0] == ("Embed_0.embedding", "embedding", 0, 8)
    assert (found.residuals, found.normalizations, len(found.layers)) == (2, 2, 8)
    assert {"softmax", "gelu", "residual"} <= found.kinds.keys()
    assert _words(graph) == ["log_softmax", "nll_loss", "mean"]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: ((out[:, 0] - y) ** 2).mean(), ["sub", "pow", "mean"]),
        (lambda out, y: optax.squared_error(out[:, 0], y).sum(), ["sub", "pow", "sum"]),
        (lambda out, y: -jnp.log(jax.nn.softmax(out)[:, 0]).mean(), ["softmax", "log", "mean"]),
        (lambda out, y: -jnp.mean(jax.nn.log_softmax(out, axis=0)), ["log_softmax", "mean"]),
        (lambda out, y: jax.nn.logsumexp(out, axis=1).mean(), ["logsumexp", "mean"]),
        (lambda out, y: jnp.mean(jnp.abs(jnp.tanh(out)[:, 0] - y)), ["tanh", "sub", "abs", "mean"]),
        (lambda out, y: jnp.clip(jax.nn.sigmoid(out), 0.1, 0.9).mean(), ["sigmoid", "clamp", "mean"]),
    ],
)
def test_terms_of_losses_have_the_words_of_rules(loss: Callable[..., Any], words: list[str]) -> None:
    weights = {"w": jnp.ones((4, 3)), "b": jnp.zeros(3)}
    graph = _graph(
        lambda weights, x, y: loss(x @ weights["w"] + weights["b"], y), weights, jnp.ones((5, 4)), jnp.ones(5)
    )
    assert graph.complete
    assert _words(graph) == words


def test_penalties_and_factors_are_terms_of_their_own() -> None:
    weights = {"w": jnp.ones((4, 3)), "unused": jnp.ones(7)}

    def loss(weights: Any, x: Any) -> Any:
        return (x @ weights["w"]).mean() + 1e-3 * jnp.sum(weights["w"] ** 2)

    graph = _graph(loss, weights, jnp.ones((5, 4)))
    terms = loss_terms.described(graph, str).terms
    assert [(term.kind, term.coefficient) for term in terms] == [("data", 1.0), ("penalty", pytest.approx(1e-3))]
    assert terms[0].operations[0].layer == "w"
    assert set(graph.parameters.values()) == {"w"}


def test_a_scan_with_parameters_is_recurrent_and_a_gradient_that_is_stopped_reaches_nothing() -> None:
    weights = {"cell": jnp.ones((3, 3)), "out": jnp.ones((3, 2)), "head": jnp.ones((3, 2))}

    def loss(weights: Any, x: Any) -> Any:
        carry, _ = jax.lax.scan(lambda h, row: (jnp.tanh(row + h @ weights["cell"]), None), jnp.zeros((5, 3)), x)
        return (carry @ weights["out"]).mean() + jax.lax.stop_gradient(carry @ weights["head"]).mean()

    graph = _graph(loss, weights, jnp.ones((6, 5, 3)))
    found = forward_layers.described(graph, str)
    assert [row[:2] for row in found.layers] == [("cell", "recurrent"), ("out", "linear")]
    assert set(graph.parameters.values()) == {"cell", "out"}
    assert np.prod(graph.shape(len(graph) - 1)) == 1


def test_where_the_graph_is_cut_is_known() -> None:
    weights = {"encoder": {"w": jnp.ones((4, 3))}, "decoder": {"w": jnp.ones((3, 2))}}

    def loss(weights: Any, x: Any) -> Any:
        code = jax.nn.relu(jax.lax.stop_gradient(x @ weights["encoder"]["w"]))
        return (code @ weights["decoder"]["w"]).mean()

    assert _graph(loss, weights, jnp.ones((5, 4))).used_before_cuts(["encoder.w"]) == (1, "decoder")


@pytest.mark.parametrize(
    ("activation", "made"),
    [
        (lambda out: out, ("weighted_sum", None)),
        (jax.nn.softmax, ("softmax", 3)),
        (lambda out: jax.nn.softmax(out, axis=0), ("softmax", 5)),
        (jax.nn.log_softmax, ("log_softmax", 3)),
        (lambda out: jax.nn.relu(out).reshape(-1), ("relu", None)),
        (lambda out: jnp.sin(out), (None, None)),
    ],
)
def test_what_made_the_predictions_is_known(
    activation: Callable[..., Any], made: tuple[str | None, int | None]
) -> None:
    call = ObservedLoss("cross_entropy", (5, 3), (5,))
    known = {
        "before/w": Collected(ValuePart.BEFORE, "w"), "loss/loss": Collected(ValuePart.LOSS, "loss"),
        "predictions": Collected(ValuePart.PREDICTIONS, "prediction", call=call),
    }  # fmt: skip

    def step(weights: Any, inputs: Any) -> Any:
        def loss(weights: Any) -> Any:
            judged = activation(inputs @ weights["w"] + weights["b"])
            return judged.mean(), judged

        (value, judged), _ = jax.value_and_grad(loss, has_aux=True)(weights)
        return (), {"loss/loss": value, "predictions": judged, "before/w": weights["w"], "before/b": weights["b"]}

    known["before/b"] = Collected(ValuePart.BEFORE, "b")
    traced = jax.jit(step).trace({"w": jnp.ones((4, 3)), "b": jnp.zeros(3)}, jnp.ones((5, 4)))
    assert read(traced.jaxpr, traced.out_info, known).made_by == {1: made}


def test_a_layer_that_is_mapped_over_samples_has_its_own_units() -> None:
    parameters = {"first": jnp.ones((5, 4)), "second": jnp.ones((3, 5))}

    def loss(weights: Any, inputs: Any) -> Any:
        outputs = jax.vmap(lambda each: weights["second"] @ jax.nn.relu(weights["first"] @ each))(inputs)
        return jnp.square(outputs).mean()

    layers = forward_layers.described(_graph(loss, parameters, jnp.ones((7, 4))), str).layers
    assert layers == (("first", "linear", 4, 5), ("second", "linear", 5, 3))


def test_what_a_relu_of_the_model_has_made_is_found() -> None:
    """Also in another shape, and by any spelling; not what is bounded of data, and each ReLU once."""

    def step(weights: Any, inputs: Any) -> Any:
        made: dict[str, Any] = {}

        def loss(weights: Any) -> Any:
            first = jax.nn.relu(inputs @ weights)
            second = jnp.maximum(first.reshape(2, 2, 3) @ weights[:3], 0)
            third = jax.nn.relu6(second @ weights[:3])
            made.update(
                bounded=jnp.maximum(inputs, 0), first=first.reshape(2, 6), second=second, third=third,
                third_again=third, linear=first @ weights[:3], tanh=jnp.tanh(first),
            )  # fmt: skip
            return third.sum(), dict(made)

        (value, values), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        return (value, gradients), values

    traced = jax.jit(step).trace(np.ones((3, 3), np.float32), np.ones((4, 3), np.float32))
    assert shown_by(traced.jaxpr, traced.out_info, (0,)).rectified == ["first", "second", "third"]
    assert shown_by(traced.jaxpr, traced.out_info, ()).rectified == []


def test_parameters_that_an_update_leaves_as_they_are_are_found() -> None:
    tx = optax.multi_transform({"train": optax.sgd(0.1), "keep": optax.set_to_zero()}, {"a": "train", "b": "keep"})

    def step(parameters: Any, inputs: Any) -> Any:
        gradients = jax.grad(lambda given: (inputs @ given["a"] @ given["b"]).sum())(parameters)
        updates, _ = tx.update(gradients, tx.init(parameters), parameters)
        after = optax.apply_updates(parameters, updates)
        return None, {"updated": after["a"], "kept": after["b"], "returned": parameters["b"], "data": inputs + 0}

    matrix = np.ones((3, 3), np.float32)
    traced = jax.jit(step).trace({"a": matrix, "b": matrix}, np.ones((4, 3), np.float32))
    assert shown_by(traced.jaxpr, traced.out_info, (0, 1)).kept == {"kept", "returned"}
