"""A compiled step that the script calls alone, and from another compiled function."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


def _train(run: Path | None) -> list[float]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    batch = tf.random.normal((8, 4))

    @tf.function
    def step() -> object:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def steps() -> object:
        return step()

    hook = None if run is None else watchglass.watch(model, run=run, save_interval=2, strict=True, rules=None)
    losses = [float(function()) for function in (step, step, steps, steps, step)]
    if hook is not None:
        hook.close()
    return losses


def test_a_step_can_be_called_from_another_function_after_it_was_watched(tmp_path: Path) -> None:
    watched = _train(tmp_path / "run")
    assert watched == _train(None)
    assert watchglass.open_run(tmp_path / "run").scalars("loss")[1].tolist() == pytest.approx(
        [*watched[:2], watched[4]]
    )
