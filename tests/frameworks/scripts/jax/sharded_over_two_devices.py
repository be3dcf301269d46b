"""A batch and a weight sharded over two devices by NamedSharding."""
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
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

jax.config.update("jax_num_cpu_devices", 2)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
mesh = Mesh(np.array(jax.devices()), ("data",))
by_row, by_column = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec(None, "data"))
everywhere = NamedSharding(mesh, PartitionSpec())

keys = jax.random.split(jax.random.key(0), 2)
params = {
    "w1": jax.device_put(jax.random.normal(keys[0], (64, 32)) * 0.2, by_column),
    "w2": jax.device_put(jax.random.normal(keys[1], (32, 10)) * 0.2, everywhere),
}
optimizer = optax.sgd(0.2, momentum=0.9)
state = optimizer.init(params)


@jax.jit
def train_step(params, state, x, y):
    def loss_fn(params):
        logits = jax.nn.relu(x @ params["w1"]) @ params["w2"]
        return jnp.mean(optax.losses.softmax_cross_entropy_with_integer_labels(logits, y))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


for step in range(48):
    rows = slice(32 * step, 32 * step + 32)
    x, y = jax.device_put(images[rows], by_row), jax.device_put(labels[rows], by_row)
    params, state, loss = train_step(params, state, x, y)
    if step % 12 == 11:
        print(step, float(loss), len(jax.devices()))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))).hexdigest())
