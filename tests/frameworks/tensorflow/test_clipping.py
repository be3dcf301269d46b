"""Gradients clipped by functions of TensorFlow or by optimizers of Keras: the fact, the norm, equal bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import tensorflow_training as trainings  # noqa: E402
import watchglass  # noqa: E402
from tensorflow_training import INPUTS, LABELS, Training, batches  # noqa: E402
from watchglass.records import facts  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]
STEPS = 40


def _clipped(how: str, gradients: list[Any]) -> list[Any]:
    if how == "clip_by_global_norm":
        return list(tf.clip_by_global_norm(gradients, 0.05)[0])
    if how == "clip_by_norm":
        return [tf.clip_by_norm(each, 0.05) for each in gradients]
    if how == "clip_by_value":
        return [tf.clip_by_value(each, -0.05, 0.05) for each in gradients]
    return gradients


def _train(training: Training, steps: int, *, how: str, compiled: str, by_hand: bool = False) -> None:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((12,)), keras.layers.Dense(16, activation="relu6"), keras.layers.Dense(4)]
    model = keras.Sequential(layers)
    variables = model.trainable_variables
    optimizer = keras.optimizers.SGD(0.1, **({} if how.startswith("clip_by") else {how: 0.05}))
    optimizer.build(variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def clipped(gradients: list[Any]) -> list[Any]:
        return _clipped(how, gradients)

    if compiled == "inside":
        clipped = tf.function(clipped)

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = clipped(tape.gradient(loss, variables))
        if by_hand:
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    if compiled:
        step = tf.function(step)
    for batch in batches(steps):
        training.losses.append(float(step(*batch)))
    training.variables = [each.value for each in model.variables]


def _norms(run: Any) -> tuple[list[float], list[float]]:
    return tuple(run.scalars(name)[1].tolist() for name in ("gradient_norm", "gradient_norm_before_clip"))


@pytest.mark.parametrize(
    ("compiled", "by_hand"), [("", False), ("", True), ("step", False), ("step", True), ("inside", False)]
)
def test_the_norm_before_clipping_is_recorded(tmp_path: Path, compiled: str, by_hand: bool) -> None:
    options = {"how": "clip_by_global_norm", "compiled": compiled, "by_hand": by_hand}
    bare = trainings.bare(_train, STEPS, **options)
    watched, run = trainings.watched(tmp_path / "run", _train, STEPS, 1, **options)
    assert watched.bits() == bare.bits()
    first, later = run.facts(facts.Clip)
    assert (first.function, first.max_norm, first.calls, first.exceeded) == ("clip_by_global_norm", 0.05, 1, 1)
    assert (later.calls, later.compared, later.exceeded) == (32, 32, 32)
    after, before = _norms(run)
    assert min(before) > 0.05
    # What the optimizer gets is clipped; what a script changes itself by is not known.
    np.testing.assert_allclose(after, before if by_hand else [0.05] * STEPS, rtol=1e-5)


@pytest.mark.parametrize(("how", "limit"), [("clip_by_norm", "max_norm"), ("clip_by_value", "clip_value")])
@pytest.mark.parametrize("compiled", ["", "step", "inside"])
def test_gradients_that_are_clipped_one_by_one_have_no_common_norm(
    tmp_path: Path, how: str, limit: str, compiled: str
) -> None:
    options = {"how": how, "compiled": compiled}
    watched, run = trainings.watched(tmp_path / "run", _train, 3, 1, **options)
    assert watched.bits() == trainings.bare(_train, 3, **options).bits()
    (clip,) = run.facts(facts.Clip)
    assert (clip.function, getattr(clip, limit), clip.compared) == (how, 0.05, 0)
    assert "gradient_norm_before_clip" not in run.tensor_names()


@pytest.mark.parametrize(("how", "limit"), [("global_clipnorm", "max_norm"), ("clipvalue", "clip_value")])
@pytest.mark.parametrize("loop", ["tape", "fit"])
def test_an_optimizer_that_clips_says_so(tmp_path: Path, how: str, limit: str, loop: str) -> None:
    if loop == "tape":
        _, run = trainings.watched(tmp_path / "run", _train, 8, 1, how=how, compiled="step")
    else:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, **{how: 0.05}), loss)
        with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True, rules=None):
            model.fit(INPUTS, LABELS, batch_size=32, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
    (clip,) = run.facts(facts.Clip)
    assert (clip.function, getattr(clip, limit)) == (how, 0.05)
    if how == "global_clipnorm":
        assert (clip.compared, clip.exceeded) == (1, 1)
        after, before = _norms(run)
        assert after == before
    else:
        assert "gradient_norm_before_clip" not in run.tensor_names()
