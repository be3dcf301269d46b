"""Small trainings in TensorFlow, of the kinds that people write: bare, and watched in the same process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from watchglass.capture import Hook, attach, loop
from watchglass.run import Run, open_run
from watchglass.testing import AdapterCase

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(256, 12)).astype(np.float32)
LABELS = INPUTS[:, :4].argmax(1).astype(np.int32)


class Training:
    """One training.

    Attributes:
        losses: What the script gets.
        variables: What it has trained.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.variables: list[Any] = []

    def bits(self) -> list[bytes]:
        """Everything that a watched training must have in common with a bare one."""
        return [np.array(self.losses).tobytes(), *(each.numpy().tobytes() for each in self.variables)]


def batches(steps: int, size: int = 32) -> Any:
    """Batches as tensors, over and over."""
    for step in range(steps):
        rows = slice(step * size % len(INPUTS), step * size % len(INPUTS) + size)
        yield tf.constant(INPUTS[rows]), tf.constant(LABELS[rows])


class Layer(tf.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.w = tf.Variable(tf.random.normal((inputs, outputs)) * 0.3)
        self.b = tf.Variable(tf.zeros(outputs))

    def __call__(self, inputs: Any) -> Any:
        return inputs @ self.w + self.b


class Net(tf.Module):
    """Two layers and a dropout whose random numbers go on from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Layer(12, 16), Layer(16, 4)]

    def __call__(self, inputs: Any) -> Any:
        return self.layers[1](tf.nn.dropout(tf.nn.relu(self.layers[0](inputs)), 0.2))

    def loss(self, inputs: Any, labels: Any) -> Any:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self(inputs)))

    def eager(self, inputs: Any, labels: Any, rate: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        variables = self.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient)
        return loss

    @tf.function(reduce_retracing=True)
    def compiled(self, inputs: Any, labels: Any, rate: Any) -> Any:
        if tf.reduce_sum(rate) > 100:  # AutoGraph makes an operation of it
            rate = rate / 2
        return self.eager(inputs, labels, rate)


def module_by_hand(training: Training, steps: int, *, compiled: bool) -> None:
    """A ``tf.Module`` with updates written by hand."""
    tf.random.set_seed(1)
    net = Net()
    for inputs, labels in batches(steps):
        step = net.compiled if compiled else net.eager
        training.losses.append(float(step(inputs, labels, tf.constant(0.1))))
    training.variables = list(net.trainable_variables)


def keras_model(training: Training, steps: int, trained: bool = True, **options: Any) -> None:
    """A model of Keras in a loop of the script, with an evaluation after each tenth update; eager without options.

    It may not be told that it is trained.
    """
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Dense(16), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2), layers.Dense(4)]
    )
    optimizer = keras.optimizers.Adam(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def update(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=trained))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def evaluate(inputs: Any, labels: Any) -> Any:
        return loss_of(labels, model(inputs, training=False))

    if options:
        update, evaluate = tf.function(update, **options), tf.function(evaluate, **options)
    for number, batch in enumerate(batches(steps), 1):
        training.losses.append(float(update(*batch)))
        if number % 10 == 0:
            training.losses.append(float(evaluate(tf.constant(INPUTS), tf.constant(LABELS))))
    training.variables = [each.value for each in model.variables + optimizer.variables]


def metrics_only(training: Training, steps: int) -> None:
    """A step that returns nothing: its loss goes into a metric, as in the guide of TensorFlow."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mean = keras.metrics.Mean()

    @tf.function
    def update(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean(loss)

    for batch in batches(steps):
        mean.reset_state()
        update(*batch)
        training.losses.append(float(mean.result()))
    training.variables = [each.value for each in model.variables]


def gan(training: Training, steps: int, *, compiled: bool) -> None:
    """Two models with a tape and an optimizer each in one step, and noise of the step."""
    import keras

    # Names of layers count up in a process, and TensorFlow sorts operations by them: sums round by their order.
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    makes = keras.Sequential([dense(16, activation="relu"), dense(12)])
    judges = keras.Sequential([dense(16, activation="relu"), dense(1)])
    optimizers = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def update(real: Any) -> Any:
        noise = tf.random.normal((32, 8))
        with tf.GradientTape() as first, tf.GradientTape() as second:
            made = makes(noise, training=True)
            real_output, made_output = judges(real, training=True), judges(made, training=True)
            make_loss = loss_of(tf.ones_like(made_output), made_output)
            judge_loss = loss_of(tf.ones_like(real_output), real_output) + loss_of(
                tf.zeros_like(made_output), made_output
            )
        pairs = ((first, make_loss, makes), (second, judge_loss, judges))
        gradients = [tape.gradient(loss, model.trainable_variables) for tape, loss, model in pairs]
        for optimizer, found, (_, _, model) in zip(optimizers, gradients, pairs, strict=True):
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return make_loss, judge_loss

    step = tf.function(update) if compiled else update
    for inputs, _ in batches(steps):
        training.losses += map(float, step(inputs))
    training.variables = [each.value for each in makes.variables + judges.variables]


def networks_in_turn(training: Training, steps: int) -> None:
    """The two models of a GAN, each updated by a function of its own, whose losses go into metrics."""
    import keras

    keras.backend.clear_session()  # as of gan
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    makes = keras.Sequential([keras.Input((8,)), dense(16, activation="relu"), dense(12)])
    judges = keras.Sequential([keras.Input((12,)), dense(16, activation="relu"), dense(1)])
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    means = keras.metrics.Mean(), keras.metrics.Mean()
    optimizers = keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.01)

    def update(number: int, tape: Any, loss: Any) -> None:
        variables = (judges, makes)[number].trainable_variables
        optimizers[number].apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        means[number](loss)

    @tf.function
    def judge(real: Any, noise: Any) -> None:
        with tf.GradientTape() as tape:
            outputs = judges(real, training=True), judges(makes(noise, training=True), training=True)
            loss = loss_of(tf.ones_like(outputs[0]), outputs[0]) + loss_of(tf.zeros_like(outputs[1]), outputs[1])
        update(0, tape, loss)

    @tf.function
    def make(noise: Any) -> None:
        with tf.GradientTape() as tape:
            output = judges(makes(noise, training=True), training=True)
            loss = loss_of(tf.ones_like(output), output)
        update(1, tape, loss)

    random = tf.random.Generator.from_seed(3)
    for inputs, _ in batches(steps):
        for mean in means:
            mean.reset_state()
        noise = random.normal((32, 8))
        judge(inputs, noise)
        make(noise)
        training.losses += [float(mean.result()) for mean in means]
    training.variables = [each.value for each in makes.variables + judges.variables]


def micro_batches(training: Training, steps: int, *, compiled: bool) -> None:
    """Two batches for each update, in functions of their own."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(4)])
    model.build((None, 12))
    optimizer = keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sums = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in model.trainable_variables]

    def add(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True):
            total.assign_add(gradient / 2)
        return loss

    def update() -> None:
        optimizer.apply_gradients(zip(sums, model.trainable_variables, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))

    if compiled:
        add, update = tf.function(add), tf.function(update)
    for number, batch in enumerate(batches(2 * steps)):
        training.losses.append(float(add(*batch)))
        if number % 2:
            update()
    training.variables = [each.value for each in model.variables]


def scaled_loss(training: Training, steps: int) -> None:
    """Mixed precision with an optimizer that scales the loss."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Dense(16, activation="relu", dtype="mixed_float16"), keras.layers.Dense(4, dtype="float32")]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def update(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for batch in batches(steps):
        training.losses.append(float(update(*batch)))
    training.variables = [each.value for each in model.variables]


def bare(train: Callable[..., None], steps: int, **options: Any) -> Training:
    """The training without watchglass."""
    training = Training()
    train(training, steps, **options)
    return training


def watched(path: Path, train: Callable[..., None], steps: int, every: int, **options: Any) -> tuple[Training, Run]:
    """The training under watch, and its run."""
    with Hook(path, strict=True, save_interval=every) as hook:
        attach(hook.port, loop("tensorflow"))
        training = bare(train, steps, **options)
    return training, open_run(path)


class TensorFlowCase(AdapterCase):
    """A module in a compiled step, and an evaluation in another one."""

    def __init__(self) -> None:
        super().__init__()
        tf.random.set_seed(1)
        self.model = Net()
        self.inputs, self.labels = tf.constant(INPUTS[:32]), tf.constant(LABELS[:32])
        self._evaluation = tf.function(
            lambda: tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(self.labels, self.model.layers[0](self.inputs)[:, :4])
            )
        )

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            self.losses.append(float(self.model.compiled(self.inputs, self.labels, tf.constant(0.1))))
            after_step(step)
            self.evaluation_losses.append(float(self._evaluation()))

    def evaluate(self) -> bool:
        self._evaluation()
        return True

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {str(index): each.numpy() for index, each in enumerate(self.model.trainable_variables)}
