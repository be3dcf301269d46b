"""Progression of diabetes from ten features: regression on a small table."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from zoo import Zoo

PROGRAM = {
    "task": "diabetes",
    "architecture": "MLP for regression",
    "framework": "keras",
    "healthy": {
        "plain": "Adam, squared error, targets of zero mean and unit variance",
        "huber": "RMSprop, Huber loss, weight decay",
        "linear": "a linear model by SGD, as a baseline",
    },
    "faults": {
        "targets_as_they_are": ("targets_scaled", "plain"),
        "relu_on_the_output": ("activation_misplaced", "plain"),
        "half_a_million_parameters": ("under_regularized", "huber"),
        "four_hundred_epochs_on_fifty_patients": ("overfitting", "plain"),
        "targets_of_other_patients": ("labels_shuffled", "linear"),
    },
}
zoo = Zoo(PROGRAM)

features, targets = load_diabetes(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(features * 21, targets, test_size=0.3, random_state=3)
few = zoo.has("half_a_million_parameters") or zoo.has("four_hundred_epochs_on_fifty_patients")
if few:
    x, y = x[:50], y[:50]
mean, std = y.mean(), y.std()
if not zoo.has("targets_as_they_are"):
    y, y_valid = (y - mean) / std, (y_valid - mean) / std
if zoo.has("targets_of_other_patients"):
    y = np.random.permutation(y)

width = 700 if zoo.has("half_a_million_parameters") else 48
if zoo.variant == "linear":
    model = keras.Sequential([keras.Input((10,)), layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)
else:
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(width, activation="gelu"),
            layers.Dense(width, activation="gelu"),
            layers.Dense(1, activation="relu" if zoo.has("relu_on_the_output") else None),
        ]
    )
    if zoo.variant == "huber":
        decay = None if zoo.has("half_a_million_parameters") else 1e-2
        optimizer = keras.optimizers.RMSprop(5e-4, weight_decay=decay)
    else:
        optimizer = keras.optimizers.Adam(1e-3)
model.compile(optimizer=optimizer, loss="huber" if zoo.variant == "huber" else "mse")
epochs = 200 if zoo.has("half_a_million_parameters") else 400 if few else 40
history = model.fit(
    x, y, batch_size=32, epochs=epochs, validation_data=(x_valid, y_valid), validation_freq=epochs // 10, verbose=0
)
zoo.fitted(history.history)
for number, validation in enumerate(history.history["val_loss"], 1):
    loss = history.history["loss"][number * epochs // 10 - 1]
    print(f"epoch {number * epochs // 10}: {loss:.4f} {validation:.4f}")


@zoo.measured_by
def skill():
    error = ((model.predict(x_valid, verbose=0)[:, 0] - y_valid) ** 2).mean()
    return 1 - error / y_valid.var()
