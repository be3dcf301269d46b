"""The sum of two marked numbers of a sequence, by a recurrent network that starts as the identity, or a GRU."""

import keras
import numpy as np
from keras import layers

from zoo import Zoo

PROGRAM = {
    "task": "adding problem",
    "architecture": "simple recurrent network",
    "framework": "keras",
    "healthy": {
        "relu": "RMSprop, recurrence starts as the identity, clipping at 1",
        "gru": "Adam, a GRU, squared error",
    },
    "faults": {
        "no_clipping_on_long_rows": ("recurrent_without_clipping", "relu"),
        "sums_in_thousandths": ("targets_scaled", "gru"),
        "all_weights_alike": ("constant_initialization", "gru"),
        "normal_weights": ("initialization_too_large", "relu"),
    },
}
STEPS = 400
zoo = Zoo(PROGRAM)
length = 80 if zoo.has("no_clipping_on_long_rows") else 16
unit = 1000.0 if zoo.has("sums_in_thousandths") else 1.0


def rows(count):
    numbers = np.random.rand(count, length) - 0.5
    marks = np.zeros((count, length))
    marks[np.arange(count), np.random.randint(length // 2, size=count)] = 1
    marks[np.arange(count), np.random.randint(length // 2, length, size=count)] = 1
    sums = (numbers * marks).sum(axis=1)
    return np.stack([numbers, marks], axis=2).astype("float32"), (unit * sums).astype("float32")


given = {}
if zoo.has("all_weights_alike"):
    alike = keras.initializers.Constant(0.05)
    given = {"kernel_initializer": alike, "recurrent_initializer": alike, "bias_initializer": alike}
if zoo.variant == "relu":
    given = {
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.1),
        "recurrent_initializer": keras.initializers.Identity(),
    }
if zoo.has("normal_weights"):
    normal = keras.initializers.RandomNormal(stddev=1.0)
    given = {"kernel_initializer": normal, "recurrent_initializer": normal}
if zoo.variant == "gru":
    cell = layers.GRU(48, **given)
    optimizer = keras.optimizers.Adam(5e-3)
else:
    cell = layers.SimpleRNN(48, activation="relu", **given)
    long = zoo.has("no_clipping_on_long_rows")
    optimizer = keras.optimizers.RMSprop(1e-2 if long else 1e-3, clipnorm=None if long else 1.0)
whole = zoo.has("all_weights_alike") or zoo.has("normal_weights")
head = {"kernel_initializer": given["kernel_initializer"]} if whole else {}
model = keras.Sequential([keras.Input((length, 2)), cell, layers.Dense(1, **head)])
model.compile(optimizer=optimizer, loss="mse")
x, y = rows(32 * STEPS)
history = model.fit(x, y, batch_size=32, epochs=1, validation_data=rows(200), verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    inputs, sums = rows(1000)
    error = ((model.predict(inputs, verbose=0)[:, 0] - sums) ** 2).mean()
    return 1 - error / sums.var()
