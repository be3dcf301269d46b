"""A forecast by stacked LSTMs with several steps per execution, a schedule, and a generator of batches."""
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

keras.utils.set_random_seed(8)
hours = np.arange(1200)
load = np.sin(2 * np.pi * hours / 24) + 0.1 * np.random.normal(size=1200)
data = keras.utils.timeseries_dataset_from_array(
    load[:-24].astype("float32")[:, None], load[24:].astype("float32"), sequence_length=24, batch_size=32, seed=8
)
model = keras.Sequential(
    [
        keras.Input((24, 1)),
        layers.Bidirectional(layers.LSTM(12, return_sequences=True)),
        layers.LSTM(12),
        layers.Dense(1),
    ]
)
schedule = keras.optimizers.schedules.PiecewiseConstantDecay([20, 40], [1e-2, 5e-3, 1e-3])
model.compile(optimizer=keras.optimizers.RMSprop(schedule), loss="mae", steps_per_execution=4)
history = model.fit(data, epochs=2, verbose=0)
print("losses", history.history["loss"], model.evaluate(data, verbose=0))
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
