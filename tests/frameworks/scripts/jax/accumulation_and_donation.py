"""optax.MultiSteps, donated buffers, static arguments, bfloat16 compute and a checkpointed block."""
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
from sklearn.datasets import load_diabetes

x, y = load_diabetes(return_X_y=True)
x, y = (x * 21).astype("float32"), ((y - y.mean()) / y.std()).astype("float32")
optimizer = optax.MultiSteps(optax.chain(optax.clip(1.0), optax.lion(1e-3)), every_k_schedule=4)


@jax.checkpoint
def block(weights, hidden):
    return jax.nn.gelu(hidden @ weights.astype(hidden.dtype))


@partial(jax.jit, static_argnames=("half",), donate_argnums=(0, 1))
def train_step(params, state, x, y, half):
    def loss_fn(params):
        hidden = x.astype(jnp.bfloat16 if half else jnp.float32)
        for weights in params["blocks"]:
            hidden = block(weights, hidden)
        return jnp.mean((hidden.astype(jnp.float32) @ params["head"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "blocks": [jax.random.normal(keys[0], (10, 32)) * 0.3, jax.random.normal(keys[1], (32, 32)) * 0.2],
    "head": jax.random.normal(keys[2], (32,)) * 0.1,
}
state = optimizer.init(params)
for step in range(80):
    rows = np.random.default_rng(step).integers(len(x), size=16)
    params, state, loss = train_step(params, state, x[rows], y[rows], half=step >= 40)
    if step % 20 == 19:
        print(step, float(loss))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))).hexdigest())
