"""Compiled functions that TensorFlow traces again while they run, for arguments of other shapes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


def test_a_smaller_last_batch_is_a_step_as_the_others(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer, loss_of = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()

    @tf.function
    def train(x: object, y: object) -> object:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def evaluate(x: object, y: object) -> object:
        return loss_of(y, model(x, training=False))

    random = np.random.default_rng(0)
    sizes = (8, 8, 5)
    batches = [
        (tf.constant(random.normal(size=(n, 4)), tf.float32), tf.constant(random.normal(size=(n, 3)), tf.float32))
        for n in sizes
    ]
    losses, evaluations = [], []
    with watchglass.watch(model, run=tmp_path / "run", save_interval=2, strict=True, rules=None):
        for _ in range(3):
            losses += [float(train(*batch)) for batch in batches]
            evaluations += [float(evaluate(*batch)) for batch in batches]
    run = watchglass.open_run(tmp_path / "run")
    assert run.scalars("loss")[1] == pytest.approx(losses)
    assert run.scalars("loss", mode="eval")[1] == pytest.approx(evaluations)
