"""A generator and a discriminator in linen, each with its state, in two jitted steps."""
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
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

images = (load_digits().data / 8 - 1).astype("float32")


class Generator(nn.Module):
    @nn.compact
    def __call__(self, z):
        return jnp.tanh(nn.Dense(64)(nn.relu(nn.Dense(64)(z))))


class Discriminator(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.leaky_relu(nn.Dense(64)(x)))[:, 0]


@jax.jit
def train_discriminator(g, d, real, z):
    fake = g.apply_fn(g.params, z)

    def loss_fn(params):
        on_real, on_fake = d.apply_fn(params, real), d.apply_fn(params, fake)
        return (
            optax.sigmoid_binary_cross_entropy(on_real, jnp.ones_like(on_real)).mean()
            + optax.sigmoid_binary_cross_entropy(on_fake, jnp.zeros_like(on_fake)).mean()
        )

    loss, grads = jax.value_and_grad(loss_fn)(d.params)
    return d.apply_gradients(grads=grads), loss


@jax.jit
def train_generator(g, d, z):
    def loss_fn(params):
        on_fake = d.apply_fn(d.params, g.apply_fn(params, z))
        return optax.sigmoid_binary_cross_entropy(on_fake, jnp.ones_like(on_fake)).mean()

    loss, grads = jax.value_and_grad(loss_fn)(g.params)
    return g.apply_gradients(grads=grads), loss


keys = jax.random.split(jax.random.key(0), 3)
g = TrainState.create(
    apply_fn=Generator().apply, params=Generator().init(keys[0], jnp.zeros((1, 8))), tx=optax.adam(1e-3, b1=0.5)
)
d = TrainState.create(
    apply_fn=Discriminator().apply, params=Discriminator().init(keys[1], images[:1]), tx=optax.adam(1e-3, b1=0.5)
)
key = keys[2]
for number in range(60):
    key, first, second = jax.random.split(key, 3)
    rows = slice(24 * number, 24 * number + 24)
    d, d_loss = train_discriminator(g, d, images[rows], jax.random.normal(first, (24, 8)))
    g, g_loss = train_generator(g, d, jax.random.normal(second, (24, 8)))
    if number % 20 == 19:
        print(number, float(d_loss), float(g_loss))
leaves = jax.tree.leaves((g.params, d.params))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest())
