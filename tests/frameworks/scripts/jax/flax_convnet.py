"""Digits by a linen CNN with batch statistics and dropout in a TrainState."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8, 1) / 16).astype("float32")


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(features=8, kernel_size=(3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.avg_pool(nn.relu(x), window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(features=64)(x)))
        return nn.Dense(features=10)(x)


class TrainState(train_state.TrainState):
    batch_stats: Any


@jax.jit
def train_step(state, images, labels, key):
    def loss_fn(params):
        logits, changed = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            images,
            True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(key, state.step)},
        )
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), (logits, changed)

    (loss, (logits, changed)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"])
    return state, loss, (logits.argmax(-1) == labels).mean()


model = CNN()
variables = model.init(jax.random.key(0), images[:1], False)
state = TrainState.create(
    apply_fn=model.apply, params=variables["params"], batch_stats=variables["batch_stats"], tx=optax.sgd(0.1, 0.9)
)
for epoch in range(3):
    for start in range(0, 1536, 64):
        rows = slice(start, start + 64)
        state, loss, accuracy = train_step(state, images[rows], labels[rows], jax.random.key(1))
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, images[1536:], False)
    print(epoch, float(loss), float(accuracy), float((logits.argmax(-1) == labels[1536:]).mean()))
leaves = jax.tree.leaves((state.params, state.batch_stats, state.opt_state))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest())
