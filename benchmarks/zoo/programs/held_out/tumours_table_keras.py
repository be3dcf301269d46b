"""Benign or malignant tumours from a table, by a functional Keras model on the JAX backend."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "tumours",
    "architecture": "MLP on a table",
    "framework": "keras",
    "healthy": {
        "two_units": "Adam, softmax over two units",
        "one_unit": "SGD with momentum, one logit, a small penalty",
    },
    "faults": {
        "features_as_they_are": ("inputs_not_normalized", "one_unit"),
        "softmax_over_one_unit": ("softmax_on_one_unit", "one_unit"),
        "penalty_of_one": ("over_regularized", "one_unit"),
        "rate_of_two_hundred": ("learning_rate_too_high", "one_unit"),
        "loss_of_negative_sign": ("flipped_sign", "two_units"),
        "logits_into_probabilities": ("missing_softmax", "two_units"),
        "fourteen_sigmoid_layers": ("too_deep", "two_units"),
        "divided_by_their_spread_twice": ("inputs_normalized_twice", "two_units"),
    },
}
zoo = Zoo(PROGRAM)

features, labels = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(features, labels, test_size=0.3, random_state=7, stratify=labels)
if not zoo.has("features_as_they_are"):
    mean, std = x.mean(axis=0), x.std(axis=0)
    x, x_valid = ((part - mean) / std for part in (x, x_valid))
if zoo.has("divided_by_their_spread_twice"):
    x, x_valid = ((part - mean) / std for part in (x, x_valid))

penalty = keras.regularizers.L2(1.0 if zoo.has("penalty_of_one") else 1e-4) if zoo.variant == "one_unit" else None
inputs = hidden = keras.Input((30,))
if zoo.has("fourteen_sigmoid_layers"):
    for _ in range(14):
        hidden = layers.Dense(24, activation="sigmoid")(hidden)
else:
    hidden = layers.Dense(24, activation="relu", kernel_regularizer=penalty)(hidden)
    hidden = layers.Dense(24, activation="relu", kernel_regularizer=penalty)(hidden)

if zoo.variant == "one_unit":
    outputs = layers.Dense(1, kernel_regularizer=penalty)(hidden)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    if zoo.has("softmax_over_one_unit"):
        outputs, loss = layers.Softmax()(outputs), keras.losses.BinaryCrossentropy()
    optimizer = keras.optimizers.SGD(200.0 if zoo.has("rate_of_two_hundred") else 0.02, momentum=0.9)
else:
    outputs = layers.Dense(2)(hidden)
    loss = keras.losses.SparseCategoricalCrossentropy()
    if not zoo.has("logits_into_probabilities"):
        outputs = layers.Softmax()(outputs)
    if zoo.has("loss_of_negative_sign"):
        # Meant as a log-likelihood.
        def loss(targets, found):
            return -keras.losses.sparse_categorical_crossentropy(targets, found)

    optimizer = keras.optimizers.Adam(2e-3)

model = keras.Model(inputs, outputs)
model.compile(optimizer=optimizer, loss=loss)
history = model.fit(x, y, batch_size=32, epochs=30, validation_data=(x_valid, y_valid), verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    answers = model.predict(x_valid, verbose=0)
    if zoo.variant == "one_unit":
        found = answers[:, 0] > (0.5 if zoo.has("softmax_over_one_unit") else 0)
    else:
        found = answers.argmax(axis=1)
    return above_chance(balanced_accuracy_score(y_valid, found), 0.5)
