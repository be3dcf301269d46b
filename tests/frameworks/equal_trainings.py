"""One classifier of digits, trained in each framework: equal weights, batches and updates, healthy or with a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import watchglass
from watchglass.capture import attach, loop

#: Epochs, rows of a batch and rows of an evaluation; every which step is captured.
EPOCHS, ROWS, HELD_OUT, INTERVAL = 3, 32, 357, 4
SIZES = (64, 32, 32, 10)
#: The hidden layer that a fault concerns.
FAULTY = 1

Arrays = NDArray[Any]


@dataclass(frozen=True)
class Toy:
    """What a training run is made of.

    Attributes:
        rate: The learning rate of Adam.
        scale: What all inputs are multiplied with.
        bias: Of all units of the second hidden layer, at the start.
        shuffled: Whether rows are in another order in each epoch, else sorted by class.
        labels: ``"true"``, or ``"random"``.
        twice: Whether the model ends in a softmax, and its loss takes logits.
        held: ``"all"``, or of the second hidden layer ``"frozen"``, or ``"left out"`` by the optimizer alone.
    """

    rate: float = 2e-3
    scale: float = 1.0
    bias: float = 0.0
    shuffled: bool = True
    labels: str = "true"
    twice: bool = False
    held: str = "all"

    def weights(self) -> list[tuple[Arrays, Arrays]]:
        """Of each layer ``[in, out]`` and ``[out]``."""
        random = np.random.default_rng(5)
        found = []
        for layer, (takes, gives) in enumerate(pairwise(SIZES)):
            kernel = random.normal(size=(takes, gives)) * (2 / takes) ** 0.5
            found.append((kernel.astype("f4"), np.full(gives, self.bias if layer == FAULTY else 0.0, "f4")))
        return found

    def data(self) -> tuple[Arrays, Arrays]:
        """All inputs and labels."""
        inputs, labels = load_digits(return_X_y=True)
        random = np.random.default_rng(3)
        order = random.permutation(len(labels))
        inputs, labels = inputs[order] / 16, labels[order]
        if self.labels == "random":
            labels = random.permutation(labels)
        return (inputs * self.scale).astype("f4"), labels.astype("i4")

    def held_out(self) -> tuple[Arrays, Arrays]:
        """What is evaluated after each epoch."""
        inputs, labels = self.data()
        return inputs[:HELD_OUT], labels[:HELD_OUT]

    def epoch(self, epoch: int) -> tuple[Arrays, Arrays]:
        """What is trained in an epoch, in its order."""
        inputs, labels = (each[HELD_OUT:] for each in self.data())
        order = (
            np.random.default_rng(epoch).permutation(len(labels))
            if self.shuffled
            else np.argsort(labels, kind="stable")
        )
        return inputs[order], labels[order]

    def batches(self, epoch: int) -> Iterator[tuple[Arrays, Arrays]]:
        """Its batches."""
        inputs, labels = self.epoch(epoch)
        for first in range(0, len(labels), ROWS):
            yield inputs[first : first + ROWS], labels[first : first + ROWS]


HEALTHY = Toy()
FAULTS = {
    "rate too high": replace(HEALTHY, rate=1000 * HEALTHY.rate),
    "rate too low": replace(HEALTHY, rate=1e-5 * HEALTHY.rate),
    "rate of zero": replace(HEALTHY, rate=0.0),
    "random labels": replace(HEALTHY, labels="random"),
    "softmax twice": replace(HEALTHY, twice=True),
    "dead units": replace(HEALTHY, bias=-10.0),
    "layer left out": replace(HEALTHY, held="left out"),
    "inputs not scaled": replace(HEALTHY, scale=16000.0),
    "not shuffled": replace(HEALTHY, shuffled=False),
}


def torch_loop(toy: Toy) -> None:
    """A loop by hand."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    layers: list[nn.Module] = []
    for kernel, bias in toy.weights():
        linear = nn.Linear(*kernel.shape)
        linear.weight.data, linear.bias.data = torch.from_numpy(kernel.T.copy()), torch.from_numpy(bias.copy())
        layers += [linear, nn.ReLU()]
    layers[-1:] = [nn.Softmax(-1)] if toy.twice else []
    model = nn.Sequential(*layers)
    if toy.held == "frozen":
        layers[2 * FAULTY].requires_grad_(False)
    given = [layer for at, layer in enumerate(layers) if toy.held == "all" or at != 2 * FAULTY]
    optimizer = torch.optim.Adam(nn.ModuleList(given).parameters(), lr=toy.rate)
    held_out = [torch.from_numpy(each) for each in toy.held_out()]
    for epoch in range(EPOCHS):
        model.train()
        for inputs, labels in toy.batches(epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.from_numpy(inputs)), torch.from_numpy(labels).long())
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(held_out[0]), held_out[1].long())


def _keras_model(toy: Toy) -> Any:
    import keras

    last = len(SIZES) - 2
    layers = [
        keras.layers.Dense(size, "relu" if layer < last else "softmax" if toy.twice else None)
        for layer, size in enumerate(SIZES[1:])
    ]
    model = keras.Sequential([keras.Input(SIZES[:1]), *layers])
    for layer, weights in zip(layers, toy.weights(), strict=True):
        layer.set_weights(weights)
    layers[FAULTY].trainable = toy.held != "frozen"
    return model


def keras_fit(toy: Toy) -> None:
    """``fit`` under the backend of the process."""
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        epoch = 0

        def __init__(self) -> None:
            super().__init__()
            self.batches = list(toy.batches(0))

        def __len__(self) -> int:
            return len(self.batches)

        def __getitem__(self, index: int) -> tuple[Arrays, Arrays]:
            return self.batches[index]

        def on_epoch_end(self) -> None:
            self.epoch += 1
            self.batches = list(toy.batches(self.epoch))

    model = _keras_model(toy)
    model.compile(
        keras.optimizers.Adam(toy.rate, epsilon=1e-8), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(
        Batches(),
        shuffle=False,
        epochs=EPOCHS,
        validation_data=toy.held_out(),
        validation_batch_size=HELD_OUT,
        verbose=0,
    )


def tape_loop(toy: Toy) -> None:
    """A tape in a ``tf.function``."""
    import keras
    import tensorflow as tf

    model = _keras_model(toy)
    optimizer = keras.optimizers.Adam(toy.rate, epsilon=1e-8)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    missed = model.layers[FAULTY].trainable_variables if toy.held == "left out" else []
    left_out = {id(each) for each in missed}

    @tf.function
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        variables = model.trainable_variables
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        optimizer.apply_gradients([pair for pair in pairs if id(pair[1]) not in left_out])
        return loss

    @tf.function
    def evaluate(inputs: Any, labels: Any) -> Any:
        return loss_of(labels, model(inputs, training=False))

    held_out = [tf.constant(each) for each in toy.held_out()]
    for epoch in range(EPOCHS):
        for batch in tf.data.Dataset.from_tensor_slices(toy.epoch(epoch)).batch(ROWS):
            step(*batch)
        evaluate(*held_out)


def jax_loop(toy: Toy) -> None:
    """linen and optax."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, hidden: Any) -> Any:
            for size in SIZES[1:-1]:
                hidden = nn.relu(nn.Dense(size)(hidden))
            logits = nn.Dense(SIZES[-1])(hidden)
            return nn.softmax(logits) if toy.twice else logits

    net = Net()
    params = {
        f"Dense_{at}": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
        for at, (kernel, bias) in enumerate(toy.weights())
    }
    tx, faulty = optax.adam(toy.rate), f"Dense_{FAULTY}"
    if toy.held == "frozen":
        kinds = {name: dict.fromkeys(params[name], "kept" if name == faulty else "trained") for name in params}
        tx = optax.multi_transform({"trained": tx, "kept": optax.set_to_zero()}, kinds)
    held = {name for name in params if toy.held != "left out" or name != faulty}

    def those_held(tree: Any) -> Any:
        return {name: tree[name] for name in tree if name in held}

    def loss_of(params: Any, inputs: Any, labels: Any) -> Any:
        logits = net.apply({"params": params}, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, inputs, labels)
        updates, state = tx.update(those_held(gradients), state, those_held(params))
        return {**params, **optax.apply_updates(those_held(params), updates)}, state, loss

    @jax.jit
    def evaluate(params: Any, inputs: Any, labels: Any) -> Any:
        return loss_of(params, inputs, labels)

    state = tx.init(those_held(params))
    for epoch in range(EPOCHS):
        for batch in toy.batches(epoch):
            params, state, _ = step(params, state, *batch)
        evaluate(params, *toy.held_out())


LOOPS: dict[str, tuple[Callable[[Toy], None], tuple[str, ...]]] = {
    "torch": (torch_loop, ("torch",)),
    "keras": (keras_fit, ("keras",)),
    "tape": (tape_loop, ("tensorflow",)),
    "jax": (jax_loop, ("jax", "flax", "optax")),
}


def train_watched(name: str, toy: Toy, path: Path) -> None:
    """Write the run of a training under watch."""
    train, loops = LOOPS[name]
    with watchglass.Hook(path, strict=True, save_interval=INTERVAL) as hook:
        for each in loops:
            attach(hook.port, loop(each))
        train(toy)
