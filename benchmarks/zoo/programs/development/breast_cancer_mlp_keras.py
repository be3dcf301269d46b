"""Breast cancer from thirty features of cells, as a binary classification, on the PyTorch backend."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "breast cancer",
    "architecture": "MLP on a table",
    "framework": "keras",
    "healthy": {
        "plain": "AdamW, early stopping",
        "balanced": "SGD with momentum, classes weighted by frequency",
    },
    "faults": {
        "one_positive_in_fifty": ("class_imbalance", "plain"),
        "labels_from_another_order": ("labels_shuffled", "balanced"),
        "large_and_unchecked": ("under_regularized", "plain"),
        "weights_of_1e_5": ("initialization_too_small", "balanced"),
        "rate_of_1e_7": ("learning_rate_too_low", "plain"),
    },
}
zoo = Zoo(PROGRAM)

features, labels = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(features, labels, test_size=0.3, random_state=2, stratify=labels)
if zoo.has("one_positive_in_fifty"):
    keep = [i for i, label in enumerate(y) if label == 1 or i % 29 == 0]
    x, y = x[keep], y[keep]
if zoo.has("large_and_unchecked"):
    x, y = x[:20], y[:20]
scaler = StandardScaler().fit(x)
x, x_valid = (scaler.transform(part).astype("float32") for part in (x, x_valid))
if zoo.has("labels_from_another_order"):
    y = np.random.permutation(y)

width = 512 if zoo.has("large_and_unchecked") else 32
given = {"kernel_initializer": keras.initializers.RandomNormal(stddev=1e-5)} if zoo.has("weights_of_1e_5") else {}
model = keras.Sequential(
    [
        keras.Input((30,)),
        layers.Dense(width, activation="relu", **given),
        layers.Dense(width, activation="relu", **given),
        layers.Dense(1, activation="sigmoid", **given),
    ]
)
stops, weights = [], None
if zoo.variant == "plain":
    rate = 1e-7 if zoo.has("rate_of_1e_7") else 1e-3
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.0 if zoo.has("large_and_unchecked") else 1e-2)
    if not zoo.has("large_and_unchecked"):
        stops = [keras.callbacks.EarlyStopping(patience=10)]
else:
    optimizer = keras.optimizers.SGD(0.03, momentum=0.9)
    weights = {0: 1.0, 1: float((1 - y).sum() / y.sum())}
model.compile(optimizer=optimizer, loss="binary_crossentropy")
history = model.fit(
    x,
    y,
    batch_size=32,
    epochs=60 if zoo.variant == "plain" else 30,
    validation_data=(x_valid, y_valid),
    class_weight=weights,
    callbacks=stops,
    verbose=2,
)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    found = model.predict(x_valid, verbose=0)[:, 0] > 0.5
    return above_chance(balanced_accuracy_score(y_valid, found), 0.5)
