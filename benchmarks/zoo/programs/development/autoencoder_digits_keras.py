"""An autoencoder of handwritten digits: sixteen numbers for each image of 8 x 8."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

from zoo import Zoo

PROGRAM = {
    "task": "digits, without labels",
    "architecture": "autoencoder",
    "framework": "keras",
    "healthy": {
        "plain": "Adam, squared error",
        "denoising": "RMSprop, noise on the inputs, binary cross-entropy on pixels in 0..1",
    },
    "faults": {
        "code_detached": ("graph_detached", "plain"),
        "relu_on_standardized_pixels": ("activation_misplaced", "plain"),
        "softmax_in_the_middle": ("activation_misplaced", "plain"),
        "cross_entropy_on_standardized_pixels": ("wrong_loss", "denoising"),
        "weights_of_1e_4": ("initialization_too_small", "plain"),
    },
}
zoo = Zoo(PROGRAM)

images = load_digits().data.astype("float32") / 16
pixels = zoo.variant == "denoising" and not zoo.has("cross_entropy_on_standardized_pixels")
if not pixels:
    images = (images - images.mean()) / images.std()
order = np.random.permutation(len(images))
train, valid = images[order[400:]], images[order[:400]]
small = keras.initializers.RandomNormal(stddev=1e-4)
given = {"kernel_initializer": small, "bias_initializer": small} if zoo.has("weights_of_1e_4") else {}


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.noise = layers.GaussianNoise(0.2 if zoo.variant == "denoising" else 0.0)
        self.encoder = keras.Sequential([layers.Dense(64, activation="relu", **given), layers.Dense(16, **given)])
        last = "relu" if zoo.has("relu_on_standardized_pixels") else None
        self.decoder = keras.Sequential(
            [layers.Dense(64, activation="relu", **given), layers.Dense(64, activation=last, **given)]
        )

    def call(self, inputs, training=False):
        code = self.encoder(self.noise(inputs, training=training))
        if zoo.has("softmax_in_the_middle"):
            code = ops.softmax(code)
        if zoo.has("code_detached"):
            code = ops.stop_gradient(code)
        return self.decoder(code)


model = Autoencoder()
if zoo.variant == "denoising":
    model.compile(optimizer=keras.optimizers.RMSprop(1e-3), loss=keras.losses.BinaryCrossentropy(from_logits=True))
else:
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
history = model.fit(train, train, batch_size=64, epochs=36, validation_data=(valid, valid), verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    outputs = model.predict(valid, verbose=0)
    if pixels:
        outputs = 1 / (1 + np.exp(-outputs))
    return 1 - ((outputs - valid) ** 2).mean() / valid.var(axis=0).mean()
