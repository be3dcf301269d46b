"""Compiled functions that other compiled functions call: parts of a step, whole steps, and loops of steps."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import tensorflow_training as trainings  # noqa: E402
import watchglass  # noqa: E402
from tensorflow_training import Training, batches  # noqa: E402
from watchglass.records import facts  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]
STEPS = 10


class Parts:
    """A training whose compiled functions are parts of one step.

    Args:
        options: Of the function that calls the model.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.runs: Counter[str] = Counter()  # how often the Python of each function runs
        self.traces: list[int] = []

    def __call__(self, training: Training, steps: int) -> None:
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense
        model = keras.Sequential(
            [keras.Input((12,)), dense(16, activation="relu"), keras.layers.Dropout(0.2), dense(4)]
        )
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.runs.clear()

        @tf.function(**self._options)
        def forward(inputs: Any, training: bool = False) -> Any:
            self.runs["forward"] += 1
            return model(inputs, training=training)

        @tf.function
        def judge(labels: Any, outputs: Any) -> Any:
            self.runs["judge"] += 1
            # A root of zero has no finite gradient, and none must flow back to it.
            return loss_of(labels, outputs), tf.sqrt(tf.reduce_sum(outputs * 0.0))

        @tf.function
        def step(inputs: Any, labels: Any) -> Any:
            self.runs["step"] += 1
            with tf.GradientTape() as tape:
                loss, _ = judge(labels, forward(inputs + tf.random.normal(tf.shape(inputs)), training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        for batch in batches(steps):
            training.losses.append(float(step(*batch)))
        self.traces = [each.experimental_get_tracing_count() for each in (forward, judge, step)]
        training.variables = [each.value for each in model.variables + optimizer.variables]


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"autograph": False}], ids=str)
@pytest.mark.parametrize("every", [1, 3])
def test_parts_of_a_step_are_seen_and_computed_as_before(tmp_path: Path, every: int, options: dict[str, Any]) -> None:
    train = Parts(**options)
    bare = trainings.bare(train, STEPS)
    traces, runs = train.traces, train.runs.copy()
    watched, run = trainings.watched(tmp_path / "run", train, STEPS, every)
    assert watched.bits() == bare.bits()
    assert (train.traces, train.runs) == (traces, runs + Counter(dict.fromkeys(runs, 1)))
    assert run.scalars("loss")[1].tolist() == bare.losses
    for name in ("dense.kernel", "gradient/dense.kernel", "update/dense.kernel", "dense.output", "dropout.output"):
        assert run.tensor(name).steps() == list(range(0, STEPS, every)), name
    assert run.facts(facts.ComputedLoss)[0].function == "cross_entropy"
    assert run.facts(facts.TermsOfLoss)[0].complete
    assert not run.facts(facts.CaptureFault)
    assert not run.facts(facts.NotCapturable)


class Net(trainings.Net):
    """Compiled methods that call each other; the outermost returns no loss."""

    @tf.function(input_signature=[tf.TensorSpec((None, 12)), tf.TensorSpec((None,), tf.int32)])
    def loss(self, inputs: Any, labels: Any) -> Any:
        return super().loss(inputs, labels)

    @tf.function
    def update(self, inputs: Any, labels: Any, rate: Any) -> Any:
        return {"loss": self.eager(inputs, labels, rate), "rate": rate}

    @tf.function
    def step(self, inputs: Any, labels: Any) -> Any:
        return self.update(inputs, labels, 0.1)["rate"]


def test_an_update_written_by_hand_is_a_step_of_the_function_around_it(tmp_path: Path) -> None:
    def train(training: Training, steps: int) -> None:
        tf.random.set_seed(1)
        net = Net()
        for inputs, labels in batches(steps):
            net.step(inputs.numpy(), labels.numpy())
        training.variables = list(net.trainable_variables)

    watched, run = trainings.watched(tmp_path / "run", train, STEPS, 3)
    assert watched.bits() == trainings.bare(train, STEPS).bits()
    assert len(run.scalars("loss")[1]) == STEPS
    assert run.tensor("update/layers.0.w").steps() == [0, 3, 6, 9]


def test_functions_that_are_called_twice_in_a_step_are_seen_twice(tmp_path: Path) -> None:
    def train(training: Training, steps: int) -> None:
        keras.utils.set_random_seed(0)
        makes = keras.Sequential([keras.Input((8,)), keras.layers.Dense(12)])
        judges = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        optimizers = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
        loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        make, judge = tf.function(lambda: makes(tf.random.normal((32, 8)))), tf.function(lambda inputs: judges(inputs))

        @tf.function
        def step(real: Any) -> Any:
            with tf.GradientTape() as first, tf.GradientTape() as second:
                outputs = judge(make()), judge(real)
                make_loss = loss_of(tf.ones_like(outputs[0]), outputs[0])
                judge_loss = loss_of(tf.ones_like(real[:, :1]), outputs[1]) + loss_of(
                    tf.zeros_like(outputs[0]), outputs[0]
                )
            pairs = ((first, make_loss, makes), (second, judge_loss, judges))
            for optimizer, (tape, loss, model) in zip(optimizers, pairs, strict=True):
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return make_loss, judge_loss

        for inputs, _ in batches(steps):
            training.losses += map(float, step(inputs))
        training.variables = [each.value for each in makes.variables + judges.variables]

    bare = trainings.bare(train, STEPS)
    watched, run = trainings.watched(tmp_path / "run", train, STEPS, 3)
    assert watched.bits() == bare.bits()
    assert run.scalars("loss")[1].tolist() == bare.losses[::2]
    assert run.scalars("model_2/loss")[1].tolist() == bare.losses[1::2]
    outputs = run.tensor("model_2.dense.output")
    assert outputs.steps() == [0, 3, 6, 9]
    assert outputs.reductions("count")[1].tolist() == [2 * 32 * 8] * 4


def _loop(name: str, step: Callable[..., Any], inputs: Any, labels: Any) -> Any:
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat(4)

    @tf.function
    def epoch() -> Any:
        loss = 0.0
        if name == "range":
            for _ in tf.range(4):
                loss = step(inputs, labels)
        else:
            for batch in data:
                loss = step(*batch)
        return loss

    return epoch


@pytest.mark.parametrize("name", ["range", "data set"])
@pytest.mark.parametrize("alone", [0, 1], ids=["", "after one step"])
def test_steps_in_a_loop_of_the_graph_are_said_not_to_be_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, alone: int
) -> None:
    def train(training: Training, steps: int) -> None:
        tf.random.set_seed(1)
        net = trainings.Net()
        ((inputs, labels),) = batches(1)
        step = tf.function(lambda *batch: net.eager(*batch, 0.1))
        training.losses += [float(step(inputs, labels)) for _ in range(alone)]
        epoch = _loop(name, step, inputs, labels)
        training.losses += [float(epoch()) for _ in range(steps)]
        training.variables = list(net.trainable_variables)

    with caplog.at_level(logging.WARNING):
        watched, run = trainings.watched(tmp_path / "run", train, 3, 1)
    assert watched.bits() == trainings.bare(train, 3).bits()
    assert len(run.steps()) == alone
    assert [each.functions for each in run.facts(facts.HiddenSteps)] == [("epoch",)]
    assert [each for each in caplog.messages if "epoch" in each] == [f"watchglass: {run.verdict().unjudged}"]
    assert "put one step into a tf.function, and call that from a loop of Python" in run.verdict().unjudged


def _train_by_turns(run: Path | None) -> list[float]:
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
    watched = _train_by_turns(tmp_path / "run")
    assert watched == _train_by_turns(None)
    run = watchglass.open_run(tmp_path / "run")
    assert run.scalars("loss")[1].tolist() == watched
    assert run.tensor("gradient/dense.kernel").steps() == [0, 2, 4]
