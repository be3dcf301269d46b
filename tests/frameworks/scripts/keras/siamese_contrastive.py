"""A siamese network with a contrastive loss: one tower for two inputs, on the PyTorch backend."""
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
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(5)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
left, right = np.random.permutation(len(x))[:1200], np.random.permutation(len(x))[:1200]
same = np.arange(1200) % 2 == 0
for number in np.flatnonzero(same):
    right[number] = np.random.choice(np.flatnonzero(y == y[left[number]]))
different = (y[left] != y[right]).astype("float32")

tower = keras.Sequential([keras.Input((64,)), layers.Dense(64, activation="tanh"), layers.Dense(16)], name="tower")
first, second = keras.Input((64,)), keras.Input((64,))


def distance(pair):
    a, b = pair
    return ops.sqrt(ops.maximum(ops.sum(ops.square(a - b), axis=1, keepdims=True), 1e-7))


outputs = layers.Lambda(distance, output_shape=(1,))([tower(first), tower(second)])


def contrastive(y_true, y_pred, margin=1.0):
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * ops.square(ops.maximum(margin - y_pred, 0)))


siamese = keras.Model([first, second], outputs)
siamese.compile(loss=contrastive, optimizer="rmsprop")
history = siamese.fit([x[left], x[right]], different[:, None], validation_split=0.2, batch_size=32, epochs=3, verbose=0)
print("losses", history.history)
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in siamese.get_weights())).hexdigest())
