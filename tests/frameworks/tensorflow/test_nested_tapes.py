"""A loss with a derivative inside: TensorFlow rounds it in another way when a twin also wants what lies between."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


def _train(run: Path | None) -> list[Any]:
    keras.utils.set_random_seed(10)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(5e-3)
    optimizer.build(model.trainable_variables)
    points = tf.linspace(0.0, 3.0, 40)[:, None]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(points)
                curve = model(points)
            slope = inner.gradient(curve, points)
            loss = tf.reduce_mean((slope + curve) ** 2) + tf.reduce_mean((model(points[:1]) - 1.0) ** 2)
        gradients = outer.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    hook = None if run is None else watchglass.watch(model, run=run, save_interval=3, strict=True, rules=None)
    losses = [float(step()) for _ in range(20)]
    if hook is not None:
        hook.close()
    return [*losses, *(variable.numpy().tobytes() for variable in model.variables)]


def test_the_training_keeps_its_bits(tmp_path: Path) -> None:
    watched = _train(tmp_path / "run")
    assert watched == _train(None)
    run = watchglass.open_run(tmp_path / "run")
    assert run.scalars("loss")[1].tolist() == pytest.approx(watched[:20])
    assert run.tensor("gradient/dense.kernel").reductions("count")[0].tolist() == list(range(0, 20, 3))
