"""A loss with a derivative inside: the twin of a Keras function rounds in another way, and the training must not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


class Curve(keras.Model):  # type: ignore[misc]  # Any for mypy
    """A solution of y' = -y."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(1)

    def call(self, points: Any) -> Any:
        return self.head(self.hidden(points))

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            curve = self(x)
        return tf.reduce_mean((tape.gradient(curve, x) + curve) ** 2) + tf.reduce_mean((y_pred[:1] - 1.0) ** 2)


def _fit(run: Path | None, jit: bool) -> list[Any]:
    keras.utils.set_random_seed(10)
    model = Curve()
    model.compile(optimizer=keras.optimizers.Adam(5e-3), jit_compile=jit)
    points = np.linspace(0, 3, 40, dtype="float32")[:, None]
    # A call that makes variables cannot be repeated, so the first one would be that of the twin alone.
    model(points)
    model.optimizer.build(model.trainable_variables)
    hook = None if run is None else watchglass.watch(model, run=run, save_interval=3, strict=True, rules=None)
    losses = model.fit(points, np.zeros_like(points), batch_size=12, epochs=6, verbose=0).history["loss"]
    if hook is not None:
        hook.close()
    return [*losses, *(np.asarray(variable).tobytes() for variable in model.variables + model.optimizer.variables)]


@pytest.mark.parametrize("jit", [False, True])
def test_the_training_keeps_its_bits(jit: bool, tmp_path: Path) -> None:
    assert _fit(tmp_path / "run", jit) == _fit(None, jit)
    run = watchglass.open_run(tmp_path / "run")
    assert run.steps() == list(range(24))
    assert run.tensor("gradient/dense_1.kernel").steps() == list(range(0, 24, 3))
