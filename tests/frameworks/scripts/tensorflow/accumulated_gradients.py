"""Gradients of four parts are added up by hand before one update."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_diabetes

tf.keras.utils.set_random_seed(7)
x, y = load_diabetes(return_X_y=True)
x, y = (x * 21).astype("float32"), ((y - y.mean()) / y.std()).astype("float32")
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, activation="gelu"), tf.keras.layers.LayerNormalization(), tf.keras.layers.Dense(1)]
)
model(x[:1])
optimizer = tf.keras.optimizers.AdamW(3e-3)
added = [tf.Variable(tf.zeros_like(each), trainable=False) for each in model.trainable_variables]


@tf.function
def accumulate(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.squeeze(model(x, training=True), 1) - y)) / 4
    for total, gradient in zip(added, tape.gradient(loss, model.trainable_variables)):
        total.assign_add(gradient)
    return loss


@tf.function
def apply():
    optimizer.apply_gradients(zip(added, model.trainable_variables))
    for total in added:
        total.assign(tf.zeros_like(total))


for epoch in range(5):
    for number, start in enumerate(range(0, 416, 16)):
        loss = accumulate(x[start : start + 16], y[start : start + 16])
        if number % 4 == 3:
            apply()
    print(epoch, float(loss))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
