"""Handwritten digits by a perceptron with two hidden layers, in Flax's linen with optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "MLP",
    "framework": "jax",
    "healthy": {
        "plain": "SGD with momentum 0.9",
        "adamw": "AdamW, warm-up, cosine decay, label smoothing 0.1",
        "dropout": "SGD with momentum 0.9, dropout 0.2 after each hidden layer",
    },
    "faults": {
        "softmax_before_cross_entropy": ("double_softmax", "plain"),
        "rate_of_1e_6": ("learning_rate_too_low", "adamw"),
        "weights_constant": ("constant_initialization", "plain"),
        "normal_weights": ("initialization_too_large", "plain"),
        "labels_permuted": ("labels_shuffled", "plain"),
        "dropout_of_97_percent": ("dropout_too_high", "dropout"),
    },
}
STEPS = 600
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(inputs, labels, test_size=0.25, random_state=0)
mean, std = x.mean(), x.std()
x, x_valid = (((part - mean) / std).astype("float32") for part in (x, x_valid))
if zoo.has("labels_permuted"):
    y = np.random.permutation(y)

dropped = 0.0
if zoo.variant == "dropout":
    dropped = 0.97 if zoo.has("dropout_of_97_percent") else 0.2
initializer = nn.initializers.lecun_normal()
if zoo.has("weights_constant"):
    initializer = nn.initializers.constant(0.05)
if zoo.has("normal_weights"):
    initializer = nn.initializers.normal(1.0)
smoothing = 0.1 if zoo.variant == "adamw" else 0.0


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, images, train):
        hidden = images
        for width in (128, 64):
            hidden = nn.relu(nn.Dense(width, kernel_init=initializer)(hidden))
            hidden = nn.Dropout(dropped, deterministic=not train)(hidden)
        logits = nn.Dense(10, kernel_init=initializer)(hidden)
        return nn.softmax(logits) if zoo.has("softmax_before_cross_entropy") else logits


def loss_of(params, images, labels, key=None):
    given = {"rngs": {"dropout": key}} if key is not None else {}
    logits = state.apply_fn({"params": params}, images, key is not None, **given)
    if smoothing:
        return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, 10), smoothing)).mean()
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def train_step(state, images, labels, key):
    key = jax.random.fold_in(key, state.step)
    loss, gradients = jax.value_and_grad(loss_of)(state.params, images, labels, key)
    return state.apply_gradients(grads=gradients), loss


model = Classifier()
key = jax.random.key(zoo.seed)
if zoo.variant == "adamw":
    rate = 1e-6 if zoo.has("rate_of_1e_6") else 2e-3
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(rate / 10, rate, 60, STEPS))
else:
    optimizer = optax.sgd(0.05, momentum=0.9)
state = TrainState.create(apply_fn=model.apply, params=model.init(key, x[:1], False)["params"], tx=optimizer)
evaluate = jax.jit(loss_of)

for step in range(STEPS):
    batch = np.random.randint(len(x), size=64)
    state, loss = train_step(state, x[batch], y[batch], key)
    zoo.trained(step, float(loss))
    if step % 100 == 99:
        validation = float(evaluate(state.params, x_valid, y_valid))
        zoo.validated(step, validation)
        print(f"step {step + 1}: training loss {loss:.4f}, validation loss {validation:.4f}")


@zoo.measured_by
def skill():
    found = state.apply_fn({"params": state.params}, x_valid, False).argmax(axis=1)
    return above_chance(float(jnp.mean(found == y_valid)), 0.1)
