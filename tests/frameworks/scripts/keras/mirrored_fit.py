"""Two logical devices under MirroredStrategy, trained by fit, with a learning rate that a callback sets."""
# /// watchglass
# headline = ""
# never_says = ["not captured", "capture is off"]
# steps = 20
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_wine

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras.utils.set_random_seed(5)
x, y = load_wine(return_X_y=True)
x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200, seed=5).batch(32, drop_remainder=True)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential(
        [
            keras.Input((13,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-2 / (epoch + 1))
history = model.fit(data, epochs=4, callbacks=[schedule], verbose=0)
print("losses", history.history["loss"], model.evaluate(data, verbose=0))
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
