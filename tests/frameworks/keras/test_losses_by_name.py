"""Losses by name, attention, and schedules of scripts of Keras are read as what they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402
from watchglass.capture import Hook, attach, loop  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


@pytest.mark.parametrize(
    ("given", "function"),
    [("mse", "mse_loss"), ("mae", "l1_loss"), ("binary_crossentropy", "binary_cross_entropy")],
)
def test_a_loss_by_name_has_its_kind_and_its_targets(given: Any, function: str, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(loss=given, optimizer="sgd")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    with Hook(tmp_path / "run", save_interval=1) as hook:
        attach(hook.port, loop("keras"))
        # Keras compares labels without the axis of one unit as if they had it.
        model.fit(x, (x[:, 0] > 0).astype("float32"), batch_size=8, verbose=0)
    run = watchglass.open_run(tmp_path / "run")
    call = run.facts("loss_call")[0].data
    assert (call["function"], call["arguments"]["target"]["shape"]) == (function, [8, 1])
    sketch = run.facts("target_sketch")[0].data
    assert (sketch["function"], sketch["shape"], sketch["max"]) == (function, [8, 1], 1.0)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_keras_shows_who_sees_whom(causal: bool, tmp_path: Path) -> None:
    tokens = keras.Input((10,), dtype="int32")
    hidden = keras.layers.Embedding(20, 8)(tokens)
    hidden = keras.layers.MultiHeadAttention(2, 4)(hidden, hidden, use_causal_mask=causal)
    model = keras.Model(tokens, keras.layers.Dense(20)(hidden))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer="sgd")
    text = np.random.default_rng(0).integers(20, size=(16, 11)).astype("int32")
    with Hook(tmp_path / "run", save_interval=1) as hook:
        attach(hook.port, loop("keras"))
        model.fit(text[:, :-1], text[:, 1:], batch_size=8, verbose=0)
    found = watchglass.open_run(tmp_path / "run").facts("token_targets")[0].data
    assert found["losses"][0]["agreeing"]["next"] == 1.0
    (call,) = found["attention"]
    assert (call["queries"], call["itself"], call["next"]) == (10, True, 0.0 if causal else 1.0)


def test_a_schedule_that_does_not_say_what_it_consists_of_ends_no_capture(tmp_path: Path) -> None:
    class Warmup(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # of a library without types
        def __call__(self, step: Any) -> Any:
            return 0.01 * keras.ops.minimum(1.0, (keras.ops.cast(step, "float32") + 1) / 2)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.AdamW(Warmup(), weight_decay=0.02))
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    with Hook(tmp_path / "run", save_interval=1, strict=True) as hook:
        attach(hook.port, loop("keras"))
        model.fit(x, x[:, :1], batch_size=8, verbose=0)
    run = watchglass.open_run(tmp_path / "run")
    (settings,) = (fact.data for fact in run.facts("optimizer"))
    assert (settings["type"], settings["groups"][0]["weight_decay"]) == ("AdamW", 0.02)
    assert settings["groups"][0]["schedule"] == "LearningRateSchedule"
    assert list(run.scalars("learning_rate")[1]) == pytest.approx([0.005, 0.01, 0.01, 0.01])
