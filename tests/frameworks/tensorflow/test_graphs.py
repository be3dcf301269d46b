"""The operations of a function of TensorFlow are those that autograd's graph of the same model in PyTorch has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

from watchglass.capture.compiled.collecting import Collected, ObservedLoss, ValuePart  # noqa: E402
from watchglass.capture.compiled.program import TracedProgram  # noqa: E402
from watchglass.capture.facts import forward_layers, loss_terms  # noqa: E402
from watchglass.capture.tensorflow.graph import TracedGraph  # noqa: E402
from watchglass.records import facts  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

layers = keras.layers
NOW = 5
CALL = ObservedLoss("mse_loss", (5, 3), (5, 3))


def _program(loss: Callable[..., Any], variables: Sequence[tuple[Any, str]], *data: Any) -> TracedProgram:
    """What is read of a traced training step, whose batches have an open length."""
    found: dict[str, Any] = {}

    @tf.function
    def step(*given: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(*given)
        value, judged = value if isinstance(value, tuple) else (value, given[0])
        found.update({"loss": value, "judged": judged, "batch": given[0]})
        found["graph"] = tf.compat.v1.get_default_graph()
        return value, tape.gradient(value, [each for each, _ in variables])

    step.get_concrete_function(*(tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in data))
    known = {
        "loss": Collected(ValuePart.LOSS, "loss"), "judged": Collected(ValuePart.PREDICTIONS, "prediction", call=CALL),
        "batch": Collected(ValuePart.BATCH, "0"),
    }  # fmt: skip
    graph = found.pop("graph")
    return TracedGraph(graph, found, known, variables).read({"batch": data[0]})


def _of(model: Any) -> list[tuple[Any, str]]:
    return [(each.value, each.path.replace("/", ".")) for each in model.trainable_variables]


def _between(graph: Any) -> list[str]:
    return [words for _, _, words in forward_layers.described(graph, str).pairs]


def _words(graph: Any) -> list[str]:
    (term, *_) = loss_terms.described(graph, str).terms
    return [each.operation for each in term.operations if each.operation != "linear"]


def test_layers_and_what_lies_between_them_are_those_of_pytorch() -> None:
    model = keras.Sequential([
        layers.Input((8, 8, 3)), layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
        layers.MaxPooling2D(), layers.Flatten(), layers.Dense(16, activation="silu"), layers.LayerNormalization(),
        layers.Dropout(0.2), layers.Dense(3),
    ])  # fmt: skip
    judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program = _program(
        lambda x, y: judge(y, model(x, training=True)), _of(model), tf.ones((NOW, 8, 8, 3)), tf.zeros(NOW, tf.int32)
    )
    graph = program.graph()
    found = forward_layers.described(graph, str)
    assert [row[1:] for row in found.layers] == [("convolution", 3, 8), ("linear", 128, 16), ("linear", 16, 3)]
    assert _between(graph) == ["batch_norm relu max_pool", "silu layer_norm scale dropout"]
    assert (found.depth, found.residuals, found.normalizations, found.batch_normalizations_count) == (3, 0, 2, 1)
    assert _words(graph) == ["log_softmax", "nll_loss", "mean"]
    assert set(graph.parameters.values()) == set(program.parameters), "biases and shifts have their part"


def test_a_batch_normalisation_over_few_values_is_named() -> None:
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(6), layers.BatchNormalization(name="few"), layers.Dense(1)]
    )
    graph = _program(lambda x: tf.reduce_mean(model(x, training=True) ** 2), _of(model), tf.ones((2, 4))).graph()
    (few,) = forward_layers.described(graph, str).batch_normalizations
    assert few.name.split(".")[-2] == "few"
    assert few == facts.FewNormalized(few.name, 2, 2)


def test_a_transformer_has_its_shortcuts_attention_and_embedding() -> None:
    tokens = layers.Input((6,), dtype="int32")
    hidden = layers.Embedding(11, 8)(tokens)
    before = layers.LayerNormalization()(hidden)
    hidden = hidden + layers.MultiHeadAttention(2, 4)(before, before, use_causal_mask=True)
    inner = layers.Dense(16, activation="gelu")(layers.LayerNormalization()(hidden))
    model = keras.Model(tokens, layers.Dense(11)(hidden + layers.Dense(8)(inner)))

    def loss(given: Any) -> Any:
        logits = model(given)[:, :-1]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(given[:, 1:], logits))

    graph = _program(loss, _of(model), tf.ones((NOW, 6), tf.int32)).graph()
    found = forward_layers.described(graph, str)
    assert found.layers[0][1:] == ("embedding", 0, 8)
    assert (found.residuals, found.normalizations, len(found.layers)) == (2, 2, 8)
    assert {"softmax", "gelu", "residual"} <= found.kinds.keys()
    assert _words(graph) == ["log_softmax", "nll_loss", "mean"]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: tf.reduce_mean((out[:, 0] - y) ** 2), ["sub", "pow", "mean"]),
        (lambda out, y: tf.reduce_sum(tf.math.squared_difference(out[:, 0], y)), ["sub", "pow", "sum"]),
        (lambda out, y: -tf.reduce_mean(tf.math.log(tf.nn.softmax(out)[:, 0])), ["softmax", "log", "mean"]),
        (lambda out, y: -tf.reduce_mean(tf.nn.log_softmax(out, axis=0)), ["log_softmax", "mean"]),
        (lambda out, y: tf.reduce_mean(tf.reduce_logsumexp(out, axis=1)), ["logsumexp", "mean"]),
        (lambda out, y: tf.reduce_mean(abs(tf.tanh(out)[:, 0] - y)), ["tanh", "sub", "abs", "mean"]),
        (lambda out, y: tf.reduce_mean(tf.clip_by_value(tf.sigmoid(out), 0.1, 0.9)), ["sigmoid", "clamp", "mean"]),
        (
            lambda out, y: tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, out[:, 0])),
            ["binary_cross_entropy_with_logits", "mean"],
        ),
        (lambda out, y: keras.losses.MeanSquaredError()(y, out[:, 0]), ["sub", "pow", "mean"]),
    ],
)
def test_terms_of_losses_have_the_words_of_rules(loss: Callable[..., Any], words: list[str]) -> None:
    weights = [(tf.Variable(tf.ones((4, 3))), "w"), (tf.Variable(tf.zeros(3)), "b")]
    (w, _), (b, _) = weights
    graph = _program(lambda x, y: loss(x @ w + b, y), weights, tf.ones((NOW, 4)), tf.ones(NOW)).graph()
    assert graph.complete
    assert _words(graph) == words


def test_penalties_and_factors_are_terms_of_their_own_and_called_functions_are_read() -> None:
    w, unused = tf.Variable(tf.ones((4, 3))), tf.Variable(tf.ones(7))

    @tf.function
    def forward(x: Any) -> Any:
        return x @ w

    graph = _program(
        lambda x: tf.reduce_mean(forward(x)) + 1e-3 * tf.nn.l2_loss(w), [(w, "w"), (unused, "unused")],
        tf.ones((NOW, 4)),
    ).graph()  # fmt: skip
    terms = loss_terms.described(graph, str).terms
    assert [(term.kind, term.coefficient) for term in terms] == [("data", 1.0), ("penalty", pytest.approx(5e-4))]
    assert terms[0].operations[0].layer == "w"
    assert set(graph.parameters.values()) == {"w"}


def test_a_loop_with_parameters_is_recurrent_and_a_branch_of_the_graph_is_opaque() -> None:
    model = keras.Sequential([layers.Input((7,)), layers.Embedding(9, 8), layers.LSTM(6), layers.Dense(1)])
    graph = _program(lambda x: tf.reduce_mean(model(x) ** 2), _of(model), tf.ones((NOW, 7), tf.int32)).graph()
    assert [row[1] for row in forward_layers.described(graph, str).layers] == ["embedding", "recurrent", "linear"]
    w = tf.Variable(tf.ones((4, 3)))

    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.cond(tf.reduce_sum(x) > 0, lambda: x @ w, lambda: x @ tf.nn.relu(w)))

    graph = _program(loss, [(w, "w")], tf.ones((NOW, 4))).graph()
    assert [each.name for each in graph.operations if each.kind == "unknown"] != []


def test_where_the_graph_is_cut_is_known() -> None:
    first, second = tf.Variable(tf.ones((4, 3))), tf.Variable(tf.ones((3, 2)))
    variables = [(first, "encoder.w"), (second, "decoder.w")]

    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.nn.relu(tf.stop_gradient(x @ first)) @ second)

    graph = _program(loss, variables, tf.ones((NOW, 4))).graph()
    assert graph.used_before_cuts(["encoder.w"]) == (1, "decoder")
    whole = _program(lambda x: tf.reduce_mean(x @ first @ second), variables, tf.ones((NOW, 4))).graph()
    assert whole.used_before_cuts([]) == (0, None)


@pytest.mark.parametrize(
    ("activation", "made"),
    [
        (lambda out: out, ("weighted_sum", None)),
        (tf.nn.softmax, ("softmax", 3)),
        (lambda out: tf.nn.softmax(out, axis=0), ("softmax", NOW)),
        (tf.nn.log_softmax, ("log_softmax", 3)),
        (lambda out: tf.reshape(tf.nn.relu(out), [-1]), ("relu", None)),
        (tf.sin, (None, None)),
    ],
)
def test_what_made_the_predictions_is_known(
    activation: Callable[..., Any], made: tuple[str | None, int | None]
) -> None:
    w, b = tf.Variable(tf.ones((4, 3))), tf.Variable(tf.zeros(3))

    def loss(x: Any) -> Any:
        judged = activation(x @ w + b)
        return tf.reduce_mean(judged), judged

    assert _program(loss, [(w, "w"), (b, "b")], tf.ones((NOW, 4))).made_by == {1: made}
