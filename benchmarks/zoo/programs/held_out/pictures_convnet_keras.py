"""Digits as pictures of 0..255 by a convolutional network of Keras layers."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits as pictures",
    "architecture": "CNN",
    "framework": "keras",
    "healthy": {
        "adam": "Adam, rescaled pixels",
        "momentum": "SGD with momentum, rescaled pixels, dropout 0.3",
    },
    "faults": {
        "rate_of_a_half": ("learning_rate_too_high", "adam"),
        "biases_of_minus_ten": ("dying_relu", "adam"),
        "pixels_as_they_are": ("raw_pixels", "momentum"),
        "convolutions_not_trainable": ("frozen_layer", "momentum"),
        "dropout_while_evaluating": ("dropout_in_evaluation", "momentum"),
        "one_filter_and_two_units": ("underfitting_small_model", "adam"),
    },
}
zoo = Zoo(PROGRAM)

pictures, labels = load_digits(return_X_y=True)
pictures = (pictures * 255 / 16).round().reshape(-1, 8, 8, 1).astype("float32")
x, x_valid, y, y_valid = train_test_split(pictures, labels, test_size=0.25, random_state=6)


class AlwaysDropout(layers.Dropout):
    """Left over from an estimate of uncertainty by dropout."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


filters, units = (1, 2) if zoo.has("one_filter_and_two_units") else (16, 64)
bias = keras.initializers.Constant(-10.0 if zoo.has("biases_of_minus_ten") else 0.0)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(filters, 3, activation="relu", bias_initializer=bias),
        layers.Conv2D(filters, 3, activation="relu", bias_initializer=bias),
        layers.Flatten(),
        layers.Dense(units, activation="relu", bias_initializer=bias),
    ]
)
if zoo.variant == "momentum":
    model.add(AlwaysDropout(0.3) if zoo.has("dropout_while_evaluating") else layers.Dropout(0.3))
model.add(layers.Dense(10, activation="softmax"))
if zoo.has("convolutions_not_trainable"):
    # Half of the model: left over from an experiment with another head.
    for layer in model.layers[:4]:
        layer.trainable = False
if not zoo.has("pixels_as_they_are"):
    x, x_valid = x / 255, x_valid / 255

if zoo.variant == "adam":
    optimizer = keras.optimizers.Adam(0.5 if zoo.has("rate_of_a_half") else 2e-3)
else:
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=8, validation_data=(x_valid, y_valid), verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    found = model.predict(x_valid, verbose=0).argmax(axis=1)
    return above_chance(float(np.mean(found == y_valid)), 0.1)
