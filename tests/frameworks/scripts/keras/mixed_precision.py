"""Mixed precision in float16 with loss scaling, gradient accumulation, and an average of the weights."""
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

keras.utils.set_random_seed(9)
keras.mixed_precision.set_global_policy("mixed_float16")
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, dtype="float32"),
    ]
)
optimizer = keras.optimizers.Adam(
    2e-3, gradient_accumulation_steps=4, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=None, global_clipnorm=1.0
)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=3, verbose=0)
optimizer.finalize_variable_values(model.trainable_variables)
print("losses", history.history["loss"])
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
