"""Meta-learning: gradients through inner gradient steps, with vmap over tasks."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random


def net(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def loss(params, inputs, targets):
    return jnp.mean((targets - net(params, inputs)) ** 2)


def inner_update(params, x, y, alpha=0.1):
    grads = jax.grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - alpha * g, params, grads)


def maml_loss(params, x1, y1, x2, y2):
    return loss(inner_update(params, x1, y1), x2, y2)


def batch_loss(params, *tasks):
    return jnp.mean(jax.vmap(partial(maml_loss, params))(*tasks))


@jax.jit
def step(params, state, *tasks):
    value, grads = jax.value_and_grad(batch_loss)(params, *tasks)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def sample(generator):
    amplitude, phase = generator.uniform(0.1, 0.5, (4, 1, 1)), generator.uniform(0, np.pi, (4, 1, 1))
    x = generator.uniform(-5, 5, (2, 4, 20, 1))
    y = amplitude * np.sin(x + phase)
    return [each.astype("float32") for each in (x[0], y[0], x[1], y[1])]


keys = random.split(random.key(0), 3)
sizes = [(1, 24), (24, 24), (24, 1)]
params = [(random.normal(k, size) * size[0] ** -0.5, jnp.zeros(size[1])) for k, size in zip(keys, sizes)]
optimizer = optax.adam(1e-3)
state = optimizer.init(params)
generator = np.random.default_rng(0)
for number in range(90):
    params, state, value = step(params, state, *sample(generator))
    if number % 30 == 29:
        print(number, float(value))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))).hexdigest())
