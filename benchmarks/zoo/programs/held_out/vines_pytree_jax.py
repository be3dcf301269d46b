"""Three kinds of wine by a perceptron that is a plain pytree, with optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "kinds of wine",
    "architecture": "MLP as a pytree",
    "framework": "jax",
    "healthy": {
        "adamw": "AdamW with a small decay",
        "sgd": "SGD with momentum, clipping at 1",
    },
    "faults": {
        "decay_of_twenty": ("over_regularized", "adamw"),
        "new_weights_thrown_away": ("step_missing", "adamw"),
        "updates_subtracted": ("flipped_sign", "adamw"),
        "table_as_it_is": ("inputs_not_normalized", "sgd"),
        "biases_of_minus_ten": ("dying_relu", "sgd"),
        "rate_of_ten": ("learning_rate_too_high", "adamw"),
    },
}
EPOCHS = 40
zoo = Zoo(PROGRAM)

table, kinds = load_wine(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(table, kinds, test_size=0.35, random_state=8, stratify=kinds)
if not zoo.has("table_as_it_is"):
    mean, std = x.mean(axis=0), x.std(axis=0)
    x, x_valid = ((part - mean) / std for part in (x, x_valid))
x, x_valid = np.float32(x), np.float32(x_valid)


start = -10.0 if zoo.has("biases_of_minus_ten") else 0.0


def layer(key, width, units):
    return {"w": jax.random.normal(key, (width, units)) * (2 / width) ** 0.5, "b": jnp.full(units, start)}


def forward(params, rows):
    for each in params[:-1]:
        rows = jax.nn.relu(rows @ each["w"] + each["b"])
    return rows @ params[-1]["w"] + params[-1]["b"]


def loss_of(params, rows, labels):
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, rows), labels).mean()


if zoo.variant == "adamw":
    rate, decay = 10.0 if zoo.has("rate_of_ten") else 2e-3, 20.0 if zoo.has("decay_of_twenty") else 1e-3
    optimizer = optax.adamw(rate, weight_decay=decay)
else:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.02, momentum=0.9))


@jax.jit
def step(params, state, rows, labels):
    loss, gradients = jax.value_and_grad(loss_of)(params, rows, labels)
    updates, state = optimizer.update(gradients, state, params)
    if zoo.has("updates_subtracted"):
        updates = jax.tree.map(jnp.negative, updates)
    return optax.apply_updates(params, updates), state, loss


keys = jax.random.split(jax.random.key(zoo.seed), 3)
params = [layer(keys[0], 13, 32), layer(keys[1], 32, 32), layer(keys[2], 32, 3)]
state = optimizer.init(params)
evaluate = jax.jit(loss_of)

count = 0
for epoch in range(EPOCHS):
    order = np.random.permutation(len(x))
    for start in range(0, len(x) - 15, 16):
        batch = order[start : start + 16]
        if zoo.has("new_weights_thrown_away"):
            _, state, loss = step(params, state, x[batch], y[batch])
        else:
            params, state, loss = step(params, state, x[batch], y[batch])
        zoo.trained(count, float(loss))
        count += 1
    if epoch % 5 == 4:
        validation = float(evaluate(params, x_valid, y_valid))
        zoo.validated(count, validation)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    return above_chance(float(jnp.mean(forward(params, x_valid).argmax(axis=1) == y_valid)), 1 / 3)
