"""Handwritten digits by a perceptron with two hidden layers, on the JAX backend."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "MLP",
    "framework": "keras",
    "healthy": {
        "plain": "SGD with momentum 0.9",
        "adamw": "AdamW, warm-up, cosine decay, label smoothing 0.1",
        "dropout": "SGD with momentum 0.9, dropout 0.2 after each hidden layer",
    },
    "faults": {
        "softmax_before_cross_entropy": ("double_softmax", "plain"),
        "rate_of_1e_6": ("learning_rate_too_low", "adamw"),
        "weights_constant": ("constant_initialization", "plain"),
        "one_bias_row_for_all": ("constant_initialization", "adamw"),
        "normal_weights": ("initialization_too_large", "plain"),
        "labels_permuted": ("labels_shuffled", "plain"),
        "dropout_of_97_percent": ("dropout_too_high", "dropout"),
    },
}
EPOCHS = 24
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(inputs, labels, test_size=0.25, random_state=0)
mean, std = x.mean(), x.std()
x, x_valid = (((part - mean) / std).astype("float32") for part in (x, x_valid))
if zoo.has("labels_permuted"):
    y = np.random.permutation(y)

dropped = 0.0
if zoo.variant == "dropout":
    dropped = 0.97 if zoo.has("dropout_of_97_percent") else 0.2


class OneUnitForAll(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        column = keras.random.uniform((shape[0], 1), -(shape[0] ** -0.5), shape[0] ** -0.5, dtype=dtype, seed=zoo.seed)
        return keras.ops.tile(column, (1, shape[1]))


initializer = "glorot_uniform"
if zoo.has("weights_constant"):
    initializer = keras.initializers.Constant(0.05)
if zoo.has("one_bias_row_for_all"):
    initializer = OneUnitForAll()
if zoo.has("normal_weights"):
    initializer = keras.initializers.RandomNormal(stddev=1.0)

model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(128, activation="relu", kernel_initializer=initializer),
        layers.Dropout(dropped),
        layers.Dense(64, activation="relu", kernel_initializer=initializer),
        layers.Dropout(dropped),
        layers.Dense(10, kernel_initializer=initializer),
    ]
)
if zoo.has("softmax_before_cross_entropy"):
    model.add(layers.Softmax())

if zoo.variant == "adamw":
    rate = 1e-6 if zoo.has("rate_of_1e_6") else 2e-3
    steps = EPOCHS * -(-len(x) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(rate / 10, steps - 60, warmup_target=rate, warmup_steps=60)
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
    )
    y, y_valid = keras.utils.to_categorical(y, 10), keras.utils.to_categorical(y_valid, 10)
else:
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
history = model.fit(x, y, batch_size=64, epochs=EPOCHS, validation_data=(x_valid, y_valid), verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    return above_chance(model.evaluate(x_valid, y_valid, verbose=0)[1], 0.1)
