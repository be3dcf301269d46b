"""Steps one by one, then fifty of them in one tf.function by tf.range, which cannot be seen."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf

tf.keras.utils.set_random_seed(10)
model = tf.keras.Sequential([tf.keras.layers.Dense(24, activation="tanh"), tf.keras.layers.Dense(1)])
model(tf.zeros((1, 1)))
optimizer = tf.keras.optimizers.Adam(5e-3)
optimizer.build(model.trainable_variables)
points = tf.linspace(0.0, 3.0, 40)[:, None]


def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(points) - tf.exp(-points)) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


@tf.function
def many(count):
    loss = 0.0
    for _ in tf.range(count):
        loss = step()
    return loss


single = tf.function(step)
for _ in range(20):
    loss = single()
print("one by one", float(loss))
print("at once", float(many(tf.constant(50))))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
