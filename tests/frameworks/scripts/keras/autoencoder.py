"""A convolutional autoencoder that removes noise, on the JAX backend."""
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
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(2)
images = (load_digits().images[..., None] / 16).astype("float32")
noisy = np.clip(images + 0.3 * np.random.normal(size=images.shape), 0, 1).astype("float32")

inputs = layers.Input(shape=(8, 8, 1))
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
first = autoencoder.fit(images, images, epochs=2, batch_size=128, shuffle=True, verbose=0)
second = autoencoder.fit(noisy[:1500], images[:1500], epochs=2, validation_data=(noisy[1500:], images[1500:]), verbose=0)
print("losses", first.history, second.history)
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in autoencoder.get_weights())).hexdigest())
