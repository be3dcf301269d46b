"""A loop of train_on_batch and test_on_batch, with a learning rate that the script lowers."""
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
from sklearn.datasets import load_breast_cancer

keras.utils.set_random_seed(10)
x, y = load_breast_cancer(return_X_y=True)
x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype("float32")


class Gate(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.value, self.gate = layers.Dense(units), layers.Dense(units, activation="sigmoid")

    def call(self, inputs):
        return self.value(inputs) * self.gate(inputs)


model = keras.Sequential([Gate(24), Gate(24), layers.Dense(1)])
model.compile(keras.optimizers.Adam(3e-3), keras.losses.BinaryCrossentropy(from_logits=True))
for epoch in range(3):
    for start in range(0, 448, 32):
        loss = model.train_on_batch(x[start : start + 32], y[start : start + 32])
    model.optimizer.learning_rate = float(model.optimizer.learning_rate) / 2
    print(epoch, float(loss), float(model.test_on_batch(x[448:], y[448:])))
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
