"""Ten steps in one call by lax.scan, and micro-batches by another scan inside."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer

x, y = load_breast_cancer(return_X_y=True)
x, y = ((x - x.mean(axis=0)) / x.std(axis=0)).astype("float32"), y.astype("float32")
optimizer = optax.adam(1e-3)


def loss_fn(params, batch):
    features, labels = batch
    hidden = jnp.tanh(features @ params["w1"] + params["b1"])
    return optax.sigmoid_binary_cross_entropy(hidden @ params["w2"], labels).mean()


def one_step(carry, batches):
    params, state = carry

    def micro(total, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return jax.tree.map(jnp.add, total, grads), loss

    grads, losses = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, params), batches)
    updates, state = optimizer.update(jax.tree.map(lambda each: each / 2, grads), state, params)
    return (optax.apply_updates(params, updates), state), losses.mean()


@jax.jit
def ten_steps(carry, batches):
    return jax.lax.scan(one_step, carry, batches)


key = jax.random.key(0)
params = {"w1": jax.random.normal(key, (30, 16)) * 0.2, "b1": jnp.zeros(16), "w2": jnp.zeros(16)}
carry = (params, optimizer.init(params))
for call in range(12):
    rows = np.random.default_rng(call).integers(len(x), size=(10, 2, 16))
    carry, losses = ten_steps(carry, (x[rows], y[rows]))
    print(call, float(losses[0]), float(losses[-1]))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(carry[0]))).hexdigest())
