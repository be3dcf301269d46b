"""Transfer learning: a frozen base with a new head, then fine-tuning after compiling again."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(4)
x, y = load_digits(return_X_y=True)
x = (x.reshape(-1, 8, 8, 1) / 16).astype("float32")
old = y < 5

base = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
pretrained = keras.Sequential([base, layers.Dense(5, activation="softmax")])
pretrained.compile("adam", "sparse_categorical_crossentropy")
first = pretrained.fit(x[old], y[old], epochs=2, verbose=0)

base.trainable = False
inputs = keras.Input((8, 8, 1))
features = base(layers.Rescaling(1.0, offset=0.0)(inputs), training=False)
outputs = layers.Dense(5)(layers.Dropout(0.2)(features))
model = keras.Model(inputs, outputs)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
second = model.fit(x[~old], y[~old] - 5, epochs=2, validation_split=0.2, verbose=0)

base.trainable = True
model.compile(keras.optimizers.Adam(1e-5), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
third = model.fit(x[~old], y[~old] - 5, epochs=1, validation_split=0.2, verbose=0)
print("losses", first.history["loss"], second.history, third.history)
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
