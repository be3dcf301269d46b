"""Faults in how a model is put together, by ``fit`` on TensorFlow, and healthy models beside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402
from watchglass.config import RuleSpec  # noqa: E402
from watchglass.evaluate import replay  # noqa: E402
from watchglass.records import facts  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

layers = keras.layers
RULES = [
    RuleSpec(name)
    for name in ("DetachedGraph", "LossGraph", "MisplacedActivation", "ActivationMissing", "OutputActivationMismatch",
                 "NormalizationBatchSize")
]  # fmt: skip
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(96, 12)).astype("float32")
CLASSES, SUMS = INPUTS[:, :4].argmax(1).astype("int32"), INPUTS.sum(1, keepdims=True)
IMAGES, TOKENS = RANDOM.normal(size=(96, 8, 8, 3)).astype("float32"), RANDOM.integers(0, 9, size=(96, 7))


class Stop(layers.Layer):  # type: ignore[misc]
    """No gradient passes."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.stop_gradient(inputs)


def _logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _autoencoder(*between: Any) -> Any:
    coder = [layers.Dense(8, "relu"), layers.Dense(4), *between, layers.Dense(8, "relu"), layers.Dense(12)]
    return keras.Sequential(coder), keras.losses.MeanSquaredError(), INPUTS, INPUTS


def _classifier(*last: Any) -> Any:
    return keras.Sequential([layers.Dense(16, "relu"), layers.Dense(4), *last]), _logits(), INPUTS, CLASSES


def _hidden(activation: Any) -> Any:
    model = keras.Sequential([layers.Dense(16, activation), layers.Dense(16, activation), layers.Dense(1)])
    return model, keras.losses.MeanSquaredError(), INPUTS, SUMS


def _convolutional() -> Any:
    model = keras.Sequential([
        layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(), layers.Dropout(0.2),
        layers.Conv2D(8, 3, activation="gelu"), layers.GlobalAveragePooling2D(), layers.Dense(4, "softmax"),
    ])  # fmt: skip
    return model, keras.losses.SparseCategoricalCrossentropy(), IMAGES, CLASSES


def _recurrent() -> Any:
    model = keras.Sequential([layers.Embedding(9, 8), layers.LSTM(8), layers.Dense(4)])
    return model, _logits(), TOKENS, CLASSES


def _attentive() -> Any:
    tokens = layers.Input((7,), dtype="int32")
    positions = layers.Embedding(7, 8)(keras.ops.arange(7))
    hidden = layers.Embedding(9, 8)(tokens) + positions
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 4)(hidden, hidden))
    hidden = hidden + layers.Dense(8)(layers.Dense(16, "silu")(hidden))
    model = keras.Model(tokens, layers.Dense(4)(layers.GlobalAveragePooling1D()(hidden)))
    return model, _logits(), TOKENS, CLASSES


SICK: dict[str, tuple[str, Callable[[], Any]]] = {
    "a code that is detached": ("DetachedGraph", lambda: _autoencoder(Stop())),
    "a ReLU on logits": ("MisplacedActivation", lambda: _classifier(layers.ReLU())),
    "a softmax between layers": ("MisplacedActivation", lambda: _hidden("softmax")),
    "no activation": ("ActivationMissing", lambda: _hidden(None)),
}
HEALTHY: dict[str, Callable[[], Any]] = {
    "autoencoder": _autoencoder, "classifier": _classifier, "regressor": lambda: _hidden("relu"),
    "convolutional": _convolutional, "recurrent": _recurrent, "attentive": _attentive,
}  # fmt: skip


def _found(run: Path, made: tuple[Any, Any, Any, Any]) -> set[str]:
    """The rules that find something in a short training, each with a warning or an error."""
    keras.utils.set_random_seed(0)
    model, judge, inputs, targets = made
    optimizer = keras.optimizers.Adam(1e-3)
    with watchglass.watch(model, run=run, save_interval=1, strict=True, rules=None):
        model.compile(optimizer, judge)
        model.fit(inputs, targets, batch_size=16, verbose=0)
    evaluation = replay(str(run), RULES)
    read = {fact.kind for fact in watchglass.open_run(run).facts()}
    assert {facts.TermsOfLoss.KIND, facts.ForwardLayers.KIND} <= read
    return {each.rule for each in evaluation.findings}


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("name", SICK)
def test_a_fault_is_found(name: str, tmp_path: Path) -> None:
    rule, make = SICK[name]
    assert rule in _found(tmp_path / "run", make())


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_gives_no_alarm(name: str, tmp_path: Path) -> None:
    assert _found(tmp_path / "run", HEALTHY[name]()) == set()
