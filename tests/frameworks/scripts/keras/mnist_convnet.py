"""The convolutional network of the first guide: fit with a validation split, then evaluate."""
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

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x = (x.reshape(-1, 8, 8, 1) / 16).astype("float32")
y = keras.utils.to_categorical(y, 10)
x_train, y_train, x_test, y_test = x[:1500], y[:1500], x[1500:], y[1500:]

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=64, epochs=4, validation_split=0.1, verbose=0)
score = model.evaluate(x_test, y_test, verbose=0)
print("losses", history.history["loss"], history.history["val_loss"], score)
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
