"""Loops of TensorFlow as people write them: equal bits whether watched or not, all losses, tensors at due steps."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.control import Commit, Stop
from watchglass.errors import TrainingStopped
from watchglass.records import Mode, ModuleKind, facts

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("tensorflow", "keras")),
        reason="TensorFlow and Keras are not installed",
    ),
]
STEPS = 12


@pytest.fixture(scope="module")
def trainings() -> Any:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", KERAS_BACKEND="tensorflow")
    import tensorflow_training

    return tensorflow_training


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("module_by_hand", {"compiled": False}),
        ("module_by_hand", {"compiled": True}),
        ("keras_model", {}),
        ("keras_model", {"autograph": True}),
        ("keras_model", {"jit_compile": True, "reduce_retracing": True}),
        ("metrics_only", {}),
        ("gan", {"compiled": False}),
        ("gan", {"compiled": True}),
        ("micro_batches", {"compiled": False}),
        ("micro_batches", {"compiled": True}),
        ("scaled_loss", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{key}={value[key]}" for key in value) or "eager",
)
@pytest.mark.parametrize("every", [1, 3, 10**6], ids=["every", "third", "never"])
def test_watched_and_bare_training_are_equal(
    trainings: Any, tmp_path: Path, name: str, options: dict[str, Any], every: int
) -> None:
    train: Callable[..., None] = getattr(trainings, name)
    expected = trainings.bare(train, STEPS, **options)
    found, run = trainings.watched(tmp_path / "run", train, STEPS, every, **options)
    assert found.bits() == expected.bits()
    assert run.steps() == list(range(STEPS))
    steps, losses = run.scalars("loss")
    assert steps.tolist() == run.steps()
    assert not run.facts(facts.CaptureFault)
    assert not run.facts(facts.NotCapturable)
    if name == "micro_batches":
        expected_losses = np.reshape(expected.losses, (STEPS, 2)).mean(1)
    elif name == "gan":
        expected_losses = np.array(expected.losses[::2])
        assert run.scalars("model_2/loss")[1].tolist() == expected.losses[1::2]
    elif name == "keras_model":
        expected_losses = np.array([loss for index, loss in enumerate(expected.losses) if index % 11 != 10])
        assert run.scalars("loss", mode="eval")[1].tolist() == expected.losses[10::11]
    else:
        expected_losses = np.array(expected.losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    weight = next(each for each in run.tensor_names() if each.startswith("gradient/")).removeprefix("gradient/")
    due = list(range(0, STEPS, every))
    for prefix in ("", "gradient/", "update/"):
        assert run.tensor(f"{prefix}{weight}").steps() == due, prefix


def test_two_functions_that_take_turns_train_a_model_each(trainings: Any, tmp_path: Path) -> None:
    expected = trainings.bare(trainings.networks_in_turn, STEPS)
    found, run = trainings.watched(tmp_path / "run", trainings.networks_in_turn, STEPS, 3)
    assert found.bits() == expected.bits()
    for number, name in enumerate(("loss", "model_2/loss")):
        steps, losses = run.scalars(name)
        assert steps.tolist() == list(range(number, 2 * STEPS, 2))
        assert losses.tolist() == expected.losses[number::2]
    due = list(range(0, 2 * STEPS, 6))
    for prefix in ("", "gradient/", "update/"):
        assert run.tensor(f"{prefix}dense.kernel").steps() == due
        assert run.tensor(f"{prefix}model_2.dense.kernel").steps() == [step + 1 for step in due]
    judged = [each for each in run.facts() if each.kind == "output_sketch" and each.global_step % 2]
    assert judged
    assert {each.data["model"] for each in judged} == {1}


def test_tensors_have_names_places_and_numbers(trainings: Any, tmp_path: Path) -> None:
    _, run = trainings.watched(tmp_path / "run", trainings.keras_model, 3, 1, autograph=True)
    infos = {info.name: info for info in run.worker().tables.catalog}
    for name in ("dense.kernel", "gradient/dense.kernel", "update/dense.kernel"):
        assert (infos[name].shape, infos[name].unit_axis, infos[name].module_kind) == ((12, 16), 1, ModuleKind.LINEAR)
    assert infos["re_lu.output"].module_kind is ModuleKind.RECTIFIER
    assert {"dense.output", "batch_normalization.output", "dropout.output", "dense_1.output"} <= infos.keys()
    (about,) = run.facts(facts.ModelDescription)
    assert about.module_kinds["dropout"] == "dropout"
    assert about.parameters == 12 * 16 + 16 + 32 + 16 * 4 + 4
    (optimizer,) = run.facts(facts.OptimizerSettings)
    assert (optimizer.type, optimizer.setting("lr")) == ("Adam", pytest.approx(0.01))
    assert run.scalars("learning_rate")[1].tolist() == pytest.approx([0.01] * 3)


def test_a_module_names_its_variables_by_its_attributes(trainings: Any, tmp_path: Path) -> None:
    _, run = trainings.watched(tmp_path / "run", trainings.module_by_hand, 2, 1, compiled=True)
    names = {"layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b"}
    assert {name for name in run.tensor_names() if not {"/"} & {*name} and "." in name} == names
    infos = {info.name: info for info in run.worker().tables.catalog}
    assert infos["layers.0.w"].module_kind is ModuleKind.LINEAR
    assert infos["layers.0.b"].role.value == "bias"


def test_a_loss_scale_is_taken_out_of_gradients(trainings: Any, tmp_path: Path) -> None:
    _, run = trainings.watched(tmp_path / "run", trainings.scaled_loss, 3, 1)
    assert 0 < run.scalars("gradient_norm")[1][0] < 100


def test_a_schedule_gives_the_learning_rate_of_due_steps(trainings: Any, tmp_path: Path) -> None:
    _, run = trainings.watched(tmp_path / "run", trainings.metrics_only, 12, 5)
    steps, rates = run.scalars("learning_rate")
    found = dict(zip(steps.tolist(), rates.tolist(), strict=True))
    expected = [0.1 * 0.5 ** (step / 10) for step in (0, 5, 10)]
    assert [found[step] for step in (0, 5, 10)] == pytest.approx(expected)


def test_a_stop_ends_the_loop_between_two_calls(trainings: Any, tmp_path: Path) -> None:
    from watchglass.capture import Hook, attach, loop

    training = trainings.Training()
    with Hook(tmp_path / "run", save_interval=1000) as hook:
        attach(hook.port, loop("tensorflow"))

        def request(number: int) -> None:
            hook.port.changes.add(Commit(7, Stop("requested by a test")))

        request(0)
        with pytest.raises(TrainingStopped):
            trainings.module_by_hand(training, 20, compiled=True)
    assert len(training.losses) == 7
    assert trainings.open_run(tmp_path / "run").steps() == list(range(7))


def test_steps_in_a_loop_of_the_graph_are_said_not_to_be_seen(
    trainings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tf = trainings.tf
    weights = tf.Variable(tf.ones((12, 1)))

    @tf.function
    def many(count: Any) -> Any:
        loss = 0.0
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((trainings.INPUTS @ weights) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    def train(training: Any, steps: int) -> None:
        training.losses += [float(many(tf.constant(steps))) for _ in range(3)]

    with caplog.at_level(logging.WARNING):
        _, run = trainings.watched(tmp_path / "run", train, 4, 1)
    assert run.steps() == []
    (fact,) = run.facts(facts.HiddenSteps)
    assert fact.functions == ("many",)
    assert [each.message for each in caplog.records if "many" in each.message] == [
        "watchglass: steps inside many are not recorded: it trains in a loop of TensorFlow, which runs without Python; "
        "put one step into a tf.function, and call that from a loop of Python"
    ]
    assert "put one step into a tf.function" in run.verdict().unjudged


def test_exceptions_of_the_script_pass_unchanged(trainings: Any, tmp_path: Path) -> None:
    from watchglass.capture import Hook, attach, loop

    tf = trainings.tf

    @tf.function
    def broken(value: Any) -> Any:
        raise KeyError("of the script")

    with Hook(tmp_path / "run", strict=True) as hook:
        attach(hook.port, loop("tensorflow"))
        with pytest.raises(KeyError, match="of the script"):
            broken(tf.constant(1.0))
        net = trainings.Net()
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            net.compiled(tf.ones((2, 5)), tf.zeros(2, tf.int32), tf.constant(0.1))
        assert hook.active


def test_nothing_of_ours_is_in_what_a_script_saves(trainings: Any, tmp_path: Path) -> None:
    from watchglass.capture import Hook, attach, loop

    tf = trainings.tf
    before = tf.GradientTape.gradient, tf.Module.__init__, type(tf.function(lambda: None)).__call__
    with Hook(tmp_path / "run", strict=True, save_interval=1) as hook:
        attach(hook.port, loop("tensorflow"))
        dense = trainings.Layer(3, 2)
        dense.serve = tf.function(dense.__call__, input_signature=[tf.TensorSpec((None, 3))])
        tf.saved_model.save(dense, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(loaded.serve(tf.ones((1, 3))), dense(tf.ones((1, 3))))
    assert (tf.GradientTape.gradient, tf.Module.__init__, type(tf.function(lambda: None)).__call__) == before


def test_evaluations_and_predictions_have_modes_of_their_own(trainings: Any, tmp_path: Path) -> None:
    import keras

    tf = trainings.tf

    def train(training: Any, steps: int) -> None:
        model = keras.Sequential([keras.layers.Dense(4)])
        optimizer, loss_of = keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        predict = tf.function(lambda inputs: model(inputs, training=False))
        for inputs, labels in trainings.batches(steps):
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(inputs, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            training.losses.append(float(loss_of(labels, model(inputs, training=False))))
            predict(inputs)

    training, run = trainings.watched(tmp_path / "run", train, 4, 1)
    assert len(run.steps()) == 4
    assert run.scalars("loss", mode="eval")[1].tolist() == training.losses
    assert len(run.steps(Mode.PREDICT)) == 4
