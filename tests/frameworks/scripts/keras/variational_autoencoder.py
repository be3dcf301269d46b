"""A variational autoencoder with a sampling layer and add_loss, on the JAX backend."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(6)
x = (load_digits().data / 16).astype("float32")


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(6)

    def call(self, inputs):
        mean, log_var = inputs
        self.add_loss(-0.5 * 0.01 * ops.mean(1 + log_var - ops.square(mean) - ops.exp(log_var)))
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(64, activation="relu")
        self.mean, self.log_var = layers.Dense(2, name="mean"), layers.Dense(2, name="log_var")
        self.sample = Sampling()
        self.decoder = keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(64, activation="sigmoid")])

    def call(self, inputs):
        hidden = self.hidden(inputs)
        return self.decoder(self.sample((self.mean(hidden), self.log_var(hidden))))


vae = VAE()
vae.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy")
history = vae.fit(x, x, epochs=4, batch_size=64, verbose=0)
print("losses", history.history["loss"])
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in vae.get_weights())).hexdigest())
