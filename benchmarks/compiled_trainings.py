"""Training runs of compiled steps that are measured: Keras on its backends, loops of TensorFlow and of JAX.

Each is one training whose steps can be made bare: what watching has put into classes and around functions is taken out
for a turn. So both kinds of steps run the same code on the same arrays.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Step = Callable[[], object]
#: Rows of a batch, and sizes of the layers of perceptrons; the same of a decoder.
LAYERS = {"tiny": (16, (16, 16, 3)), "perceptron": (64, (784, 512, 512, 10))}
ROWS, BLOCKS, WIDTH, HEADS, TOKENS, WORDS = 16, 4, 128, 4, 64, 256


class Patches:
    """Attributes of classes, modules and objects that watching has replaced.

    Args:
        owners: What may have them.
    """

    def __init__(self, *owners: Any) -> None:
        self._before = [(owner, dict(vars(owner))) for owner in owners]
        self._found: list[tuple[Any, str, Any, Any]] = []

    def find(self) -> None:
        """Find those that were replaced since this object was made."""
        self._found += [
            (owner, name, value, vars(owner)[name])
            for owner, before in self._before
            for name, value in before.items()
            if vars(owner).get(name) is not value and callable(value)
        ]

    def add(self, owner: Any, name: str, bare: Any) -> None:
        """Add one whose original was not there before."""
        self._found.append((owner, name, bare, vars(owner)[name]))

    def put(self, *, watched: bool) -> None:
        """Put the replaced ones in, or the originals."""
        for owner, name, bare, replaced in self._found:
            setattr(owner, name, replaced if watched else bare)


class CompiledTraining:
    """A training run.

    Args:
        step: Makes a step.
        finish: Waits until all steps are computed.
        patches: What watching has replaced.
    """

    def __init__(self, step: Step, patches: Patches, finish: Step = lambda: None) -> None:
        self._step, self._finish, self.patches = step, finish, patches

    def make(self, steps: int) -> None:
        """Make steps."""
        for _ in range(steps):
            self._step()
        self._finish()

    def find(self) -> None:
        """Find what watching has replaced, after a step."""
        self.patches.find()

    def run(self, turns: Iterator[int], length: int) -> None:
        """Make turns of steps until there are no more."""
        for _ in turns:
            self.make(length)


class KerasTraining(CompiledTraining):
    """A training run by ``fit``, which ends with the turns.

    Args:
        model: The model, compiled.
        data: Its endless data.
        patches: What watching has replaced.
    """

    def __init__(self, model: Any, data: Callable[[], Any], patches: Patches) -> None:
        self._model, self._data, self._switched = model, data, False
        super().__init__(lambda: None, patches)

    def make(self, steps: int) -> None:
        """Make steps, by a fit of their own."""
        self.run(iter(range(1)), steps)

    def run(self, turns: Iterator[int], length: int) -> None:
        """One fit."""
        import keras

        model = self._model

        class Turns(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if (batch + 1) % length == 0 and next(turns, None) is None:
                    model.stop_training = True

        next(turns)
        model.fit(self._data(), steps_per_epoch=1 << 40, callbacks=[Turns()], shuffle=False, verbose=0)

    def find(self) -> None:
        """Also the function of the model."""
        super().find()
        if hasattr(self._model.train_function, "plain"):
            self.patches.add(self._model, "train_function", self._model.train_function.plain)


def arrays(size: str) -> tuple[Any, Any]:
    """A batch: inputs and labels."""
    chance = np.random.default_rng(0)
    if size == "decoder":
        words = chance.integers(0, WORDS, (ROWS, TOKENS + 1))
        return words[:, :-1].astype("int32"), words[:, 1:].astype("int32")
    rows, layers = LAYERS[size]
    return chance.normal(size=(rows, layers[0])).astype("float32"), chance.integers(0, layers[-1], rows).astype("int32")


def keras_model(size: str) -> Any:
    """A model of Keras, with logits."""
    import keras

    keras.utils.set_random_seed(0)
    if size != "decoder":
        widths = LAYERS[size][1]
        hidden = [keras.layers.Dense(width, activation="relu") for width in widths[1:-1]]
        return keras.Sequential([keras.Input((widths[0],)), *hidden, keras.layers.Dense(widths[-1])])
    inputs = keras.Input((TOKENS,), dtype="int32")
    x = keras.layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(BLOCKS):
        normed = keras.layers.LayerNormalization()(x)
        attended = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normed, normed, use_causal_mask=True)
        x = keras.layers.Add()([x, attended])
        wide = keras.layers.Dense(4 * WIDTH, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(WIDTH)(wide)])
    return keras.Model(inputs, keras.layers.Dense(WORDS)(keras.layers.LayerNormalization()(x)))


def with_keras(backend: str, size: str, watch: Callable[..., None]) -> CompiledTraining:
    """``fit`` on a backend."""
    os.environ["KERAS_BACKEND"] = backend
    import keras

    owners = [keras.Model, keras.callbacks.CallbackList, keras.Layer]
    owners += [_function_class()] if backend == "tensorflow" else []
    patches = Patches(*owners)
    watch("keras")
    model = keras_model(size)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    batch = arrays(size)

    def data() -> Any:
        if backend == "tensorflow":
            return sys.modules["tensorflow"].data.Dataset.from_tensors(batch).repeat()
        return (batch for _ in itertools.count())

    return KerasTraining(model, data, patches)


def _function_class() -> Any:
    import tensorflow as tf

    return type(tf.function(lambda: None))


def _tensorflow_owners() -> list[Any]:
    import keras
    import tensorflow as tf

    variable = next(each for each in type(tf.Variable(0.0)).__mro__ if "assign_sub" in vars(each))
    optimizers = [each for each in keras.optimizers.Adam.__mro__ if "apply" in vars(each)]
    return [
        _function_class(), tf.GradientTape, tf.Module, tf.nn, variable, keras.Layer, keras.losses.Loss, keras.losses,
        *optimizers,
    ]  # fmt: skip


def with_tape(size: str, watch: Callable[..., None], *, compiled: bool = True) -> CompiledTraining:
    """A loop of ``tf.GradientTape``, in a ``tf.function`` or eager."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf

    patches = Patches(*_tensorflow_owners())
    watch("tensorflow")
    model, optimizer = keras_model(size), keras.optimizers.Adam(1e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inputs, labels = map(tf.constant, arrays(size))

    def update(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))  # noqa: B905  # as scripts have it
        return loss

    step = tf.function(update) if compiled else update
    return CompiledTraining(lambda: step(inputs, labels), patches)


def with_tape_other(size: str, watch: Callable[..., None]) -> CompiledTraining:
    """Calls of a ``tf.function`` that is no step, while a loop is watched."""
    training = with_tape(size, watch)
    training.make(1)
    import tensorflow as tf

    other, given = tf.function(lambda value: value * 2.0), tf.constant(1.0)
    return CompiledTraining(lambda: other(given), training.patches)


def with_jax(size: str, watch: Callable[..., None], *, other: bool = False) -> CompiledTraining:
    """A step of flax and optax, as one jitted function; or another jitted function beside it."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    watch("jax", "optax", "flax")

    class Block(nn.Module):  # type: ignore[misc]  # untyped
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
            x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))

    class Decoder(nn.Module):  # type: ignore[misc]  # untyped
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(WORDS, WIDTH)(tokens)
            for _ in range(BLOCKS):
                x = Block()(x)
            return nn.Dense(WORDS)(nn.LayerNorm()(x))

    class Perceptron(nn.Module):  # type: ignore[misc]  # untyped
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            widths = LAYERS[size][1]
            for width in widths[1:-1]:
                x = nn.relu(nn.Dense(width)(x))
            return nn.Dense(widths[-1])(x)

    net: Any = Decoder() if size == "decoder" else Perceptron()
    inputs, labels = map(jnp.asarray, arrays(size))
    optimizer = optax.adam(1e-3)
    params = net.init(jax.random.key(0), inputs)
    state = params, optimizer.init(params)

    def loss_of(params: Any, inputs: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, inputs), labels).mean()

    @jax.jit  # type: ignore[untyped-decorator]
    def update(state: Any, inputs: Any, labels: Any) -> Any:
        params, held = state
        loss, gradients = jax.value_and_grad(loss_of)(params, inputs, labels)
        updates, held = optimizer.update(gradients, held, params)
        return (optax.apply_updates(params, updates), held), loss

    class Called:
        """The function that the script calls."""

        function: Any = update

    def step() -> None:
        nonlocal state
        state, _ = Called.function(state, inputs, labels)

    training = CompiledTraining(step, Patches(), lambda: jax.block_until_ready(state))
    if other:
        training.make(1)
        Called.function = jax.jit(lambda value: value * 2.0)
        given = jnp.float32(1.0)
        training = CompiledTraining(lambda: Called.function(given), Patches())
    training.patches.add(Called, "function", Called.function.watched.plain)
    return training
