"""Examples against the model by the gradient with regard to its inputs, with a persistent tape."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_digits

tf.keras.utils.set_random_seed(8)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
optimizer = tf.keras.optimizers.SGD(0.1)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(images, labels):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        loss = loss_fn(labels, model(images))
    attacked = tf.clip_by_value(images + 0.1 * tf.sign(tape.gradient(loss, images)), 0, 1)
    with tf.GradientTape() as second:
        hard = loss_fn(labels, model(attacked))
    clean = tape.gradient(loss, model.trainable_variables)
    robust = second.gradient(hard, model.trainable_variables)
    del tape
    mixed = [(a + b) / 2 for a, b in zip(clean, robust)]
    optimizer.apply_gradients(zip(mixed, model.trainable_variables))
    return loss, hard


for step in range(60):
    rows = slice(24 * step, 24 * step + 24)
    loss, hard = train_step(tf.constant(x[rows]), tf.constant(y[rows]))
    if step % 20 == 19:
        print(step, float(loss), float(hard))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
