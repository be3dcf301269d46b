"""Progression of diabetes from ten features: regression on a small table, in Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from zoo import Zoo

PROGRAM = {
    "task": "diabetes",
    "architecture": "MLP for regression",
    "framework": "jax",
    "healthy": {
        "plain": "Adam, squared error, targets of zero mean and unit variance",
        "huber": "RMSprop, Huber loss, weight decay",
    },
    "faults": {
        "targets_as_they_are": ("targets_scaled", "plain"),
        "relu_on_the_output": ("activation_misplaced", "plain"),
        "half_a_million_parameters": ("under_regularized", "huber"),
        "four_hundred_epochs_on_fifty_patients": ("overfitting", "plain"),
    },
}
zoo = Zoo(PROGRAM)

features, targets = load_diabetes(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(features * 21, targets, test_size=0.3, random_state=3)
few = zoo.has("half_a_million_parameters") or zoo.has("four_hundred_epochs_on_fifty_patients")
if few:
    x, y = x[:50], y[:50]
mean, std = y.mean(), y.std()
if not zoo.has("targets_as_they_are"):
    y, y_valid = (y - mean) / std, (y_valid - mean) / std
x, x_valid, y, y_valid = (np.float32(part) for part in (x, x_valid, y, y_valid))


class Regressor(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, width, key):
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(10, width, key=keys[0])
        self.second = eqx.nn.Linear(width, width, key=keys[1])
        self.head = eqx.nn.Linear(width, 1, key=keys[2])

    def __call__(self, patient):
        hidden = jax.nn.gelu(self.second(jax.nn.gelu(self.first(patient))))
        output = self.head(hidden)[0]
        return jax.nn.relu(output) if zoo.has("relu_on_the_output") else output


def loss_of(model, patients, targets):
    outputs = jax.vmap(model)(patients)
    if zoo.variant == "huber":
        return optax.huber_loss(outputs, targets).mean()
    return jnp.mean((outputs - targets) ** 2)


@eqx.filter_jit
def train_step(model, state, patients, targets):
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model, patients, targets)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


model = Regressor(700 if zoo.has("half_a_million_parameters") else 48, jax.random.key(zoo.seed))
if zoo.variant == "huber":
    decay = 0.0 if zoo.has("half_a_million_parameters") else 1e-2
    optimizer = optax.chain(optax.add_decayed_weights(decay), optax.rmsprop(5e-4))
else:
    optimizer = optax.adam(1e-3)
state = optimizer.init(eqx.filter(model, eqx.is_array))
evaluate = eqx.filter_jit(loss_of)

epochs = 400 if few else 40
step = 0
for epoch in range(epochs):
    order = np.random.permutation(len(x))
    for start in range(0, len(x) - 31, 32):
        rows = order[start : start + 32]
        model, state, loss = train_step(model, state, x[rows], y[rows])
        zoo.trained(step, float(loss))
        step += 1
    if epoch % (epochs // 10) == 0:
        validation = float(evaluate(model, x_valid, y_valid))
        zoo.validated(step, validation)
        print(f"epoch {epoch}: {loss:.4f} {validation:.4f}")


@zoo.measured_by
def skill():
    error = ((jax.vmap(model)(x_valid) - y_valid) ** 2).mean()
    return 1 - float(error) / y_valid.var()
