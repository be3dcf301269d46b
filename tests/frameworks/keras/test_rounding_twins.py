"""The twin of a Keras function may round in another way, or draw other random numbers; the training must not."""

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


class Noisy(keras.Model):  # type: ignore[misc]
    """Trained with noise of TensorFlow's own generator, whose numbers depend on the calls before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.normalization = keras.layers.Dense(8), keras.layers.BatchNormalization()
        self.head = keras.layers.Dense(3)

    def call(self, rows: Any, training: bool = False) -> Any:
        return self.head(self.normalization(self.hidden(rows), training=training))

    def train_step(self, data: Any) -> dict[str, Any]:
        rows, labels = data
        with tf.GradientTape() as tape:
            answers = self(rows + 0.1 * tf.random.normal(tf.shape(rows)), training=True)
            loss = self.compute_loss(rows, labels, answers)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def _fit_noisy(run: Path | None, **steps: Any) -> list[Any]:
    keras.utils.set_random_seed(3)
    model = Noisy()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    numbers = np.random.default_rng(0)
    rows, labels = numbers.normal(size=(64, 7)).astype("float32"), numbers.integers(0, 3, 64)
    hook = None if run is None else watchglass.watch(model, run=run, strict=True, rules=None, **steps)
    losses = model.fit(rows, labels, batch_size=16, epochs=4, verbose=0).history["loss"]
    if hook is not None:
        hook.close()
    return [*losses, *(np.asarray(variable).tobytes() for variable in model.variables + model.optimizer.variables)]


@pytest.mark.parametrize(
    "steps", [{"save_interval": 3}, {"save_interval": 1}, {"save_interval": 1, "end_step": 7}], ids=str
)
def test_random_numbers_are_those_of_the_unwatched_training(steps: dict[str, int], tmp_path: Path) -> None:
    # From the fifth captured call on, the twin would run alone, and the function would miss the numbers that it draws.
    assert _fit_noisy(tmp_path / "run", **steps) == _fit_noisy(None)
    due = range(0, steps.get("end_step", 16), steps["save_interval"])
    assert watchglass.open_run(tmp_path / "run").tensor("gradient/dense.kernel").steps() == list(due)
