"""Two outputs with losses and weights of their own, and the callbacks that people use: it stops early."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
import os

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(7)
x, progression = load_diabetes(return_X_y=True)
x = (x * 21).astype("float32")
scaled = ((progression - progression.mean()) / progression.std()).astype("float32")[:, None]
severe = (progression > 140).astype("float32")[:, None]

inputs = keras.Input((10,), name="patient")
hidden = layers.Dense(32, activation="gelu")(inputs)
amount = layers.Dense(1, name="amount")(hidden)
kind = layers.Dense(1, activation="sigmoid", name="kind")(hidden)
model = keras.Model(inputs, {"amount": amount, "kind": kind})
model.compile(
    optimizer=keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    loss={"amount": "mse", "kind": "binary_crossentropy"},
    loss_weights={"amount": 1.0, "kind": 0.5},
    metrics={"kind": ["accuracy"]},
)
history = model.fit(
    x,
    {"amount": scaled, "kind": severe},
    epochs=30,
    validation_split=0.3,
    callbacks=[
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.CSVLogger("losses.csv"),
        keras.callbacks.TerminateOnNaN(),
    ],
    verbose=0,
)
print("epochs", len(history.history["loss"]), sorted(os.listdir()))
print("losses", history.history)
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
