"""A variational autoencoder in linen with setup and methods, and a key split at each step."""
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

images = (load_digits().data > 7).astype("float32")


class VAE(nn.Module):
    latents: int = 4

    def setup(self):
        self.enc, self.mean, self.logvar = nn.Dense(64), nn.Dense(self.latents), nn.Dense(self.latents)
        self.dec1, self.dec2 = nn.Dense(64), nn.Dense(64)

    def decode(self, z):
        return self.dec2(nn.relu(self.dec1(z)))

    def __call__(self, x, key):
        hidden = nn.relu(self.enc(x))
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        return self.decode(mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, logvar.shape)), mean, logvar


@jax.vmap
def kl_divergence(mean, logvar):
    return -0.5 * jnp.sum(1 + logvar - jnp.square(mean) - jnp.exp(logvar))


@jax.vmap
def binary_cross_entropy(logits, labels):
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, labels))


@jax.jit
def train_step(state, batch, key):
    def loss_fn(params):
        recon, mean, logvar = state.apply_fn({"params": params}, batch, key)
        return binary_cross_entropy(recon, batch).mean() + kl_divergence(mean, logvar).mean()

    return state.apply_gradients(grads=jax.grad(loss_fn)(state.params))


@jax.jit
def evaluate(params, batch, key):
    recon, mean, logvar = VAE().apply({"params": params}, batch, key)
    return binary_cross_entropy(recon, batch).mean(), kl_divergence(mean, logvar).mean()


key = jax.random.key(0)
params = VAE().init(key, images[:1], key)["params"]
state = TrainState.create(apply_fn=VAE().apply, params=params, tx=optax.adam(2e-3))
for epoch in range(3):
    for start in range(0, 1536, 64):
        key, own = jax.random.split(key)
        state = train_step(state, images[start : start + 64], own)
    print(epoch, *map(float, evaluate(state.params, images[1536:], key)))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(state.params))).hexdigest())
