"""A GAN on PyTorch that overrides train_step: backwards of PyTorch, two optimizers of Keras."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from keras import layers, ops

keras.utils.set_random_seed(2)


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [keras.Input((2,)), layers.Dense(32), layers.LeakyReLU(0.2), layers.Dense(1)], name="discriminator"
        )
        self.generator = keras.Sequential(
            [keras.Input((4,)), layers.Dense(32, activation="relu"), layers.Dense(2)], name="generator"
        )
        self.seed = keras.random.SeedGenerator(3)
        self.built = True
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def update(self, loss, optimizer, weights):
        self.zero_grad()
        loss.backward()
        with torch.no_grad():
            optimizer.apply([each.value.grad for each in weights], weights)

    def train_step(self, real):
        real = real[0] if isinstance(real, tuple) else real
        count = real.shape[0]
        fake = self.generator(keras.random.normal((count, 4), seed=self.seed)).detach()
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], 0)
        d_loss = self.loss_fn(labels, self.discriminator(ops.concatenate([fake, real], 0)))
        self.update(d_loss, self.d_optimizer, self.discriminator.trainable_weights)
        made = self.generator(keras.random.normal((count, 4), seed=self.seed))
        g_loss = self.loss_fn(ops.zeros((count, 1)), self.discriminator(made))
        self.update(g_loss, self.g_optimizer, self.generator.trainable_weights)
        return {"d_loss": d_loss.detach(), "g_loss": g_loss.detach()}


points = np.random.default_rng(0).normal(size=(512, 2)) * [1, 0.2] + [2, 1]
gan = Gan()
gan.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
history = gan.fit(points.astype("float32"), epochs=2, batch_size=64, verbose=0).history
print(history)
print(hashlib.sha256(b"".join(weight.tobytes() for weight in gan.get_weights())).hexdigest())
