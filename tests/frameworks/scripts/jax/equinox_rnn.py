"""Spirals by a GRU cell of Equinox under lax.scan, with vmap over the batch."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

generator = np.random.default_rng(0)
t = np.linspace(0, 6, 16)
turn = generator.choice([-1.0, 1.0], size=(512, 1))
angle = turn * t + generator.uniform(0, 6, size=(512, 1))
spirals = np.stack([t / 6 * np.cos(angle), t / 6 * np.sin(angle)], axis=-1).astype("float32")
labels = (turn[:, 0] > 0).astype("float32")


class RNN(eqx.Module):
    hidden_size: int
    cell: eqx.Module
    linear: eqx.nn.Linear
    bias: jax.Array

    def __init__(self, hidden_size, *, key):
        ckey, lkey = jax.random.split(key)
        self.hidden_size = hidden_size
        self.cell = eqx.nn.GRUCell(2, hidden_size, key=ckey)
        self.linear = eqx.nn.Linear(hidden_size, 1, use_bias=False, key=lkey)
        self.bias = jnp.zeros(1)

    def __call__(self, input):
        def f(carry, inp):
            return self.cell(inp, carry), None

        out, _ = jax.lax.scan(f, jnp.zeros((self.hidden_size,)), input)
        return jax.nn.sigmoid(self.linear(out) + self.bias)


@eqx.filter_value_and_grad
def compute_loss(model, x, y):
    found = jax.vmap(model)(x)[:, 0]
    return -jnp.mean(y * jnp.log(found) + (1 - y) * jnp.log(1 - found))


@eqx.filter_jit
def make_step(model, x, y, opt_state):
    loss, grads = compute_loss(model, x, y)
    updates, opt_state = optim.update(grads, opt_state)
    return loss, eqx.apply_updates(model, updates), opt_state


model = RNN(16, key=jax.random.key(0))
optim = optax.adam(3e-3)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(60):
    rows = generator.integers(512, size=32)
    loss, model, opt_state = make_step(model, spirals[rows], labels[rows], opt_state)
    if step % 20 == 19:
        print(step, loss.item())
leaves = jax.tree.leaves(eqx.filter(model, eqx.is_array))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest())
