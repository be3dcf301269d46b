"""The guide on loops of one's own: a schedule, clipping, metrics, a regularization loss, jit_compile."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_breast_cancer

tf.keras.utils.set_random_seed(6)
x, y = load_breast_cancer(return_X_y=True)
x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype("float32")
train = tf.data.Dataset.from_tensor_slices((x[:400], y[:400])).shuffle(400, seed=6).batch(32, drop_remainder=True)

inputs = tf.keras.Input(shape=(30,))
hidden = tf.keras.layers.Dense(32, activation="relu", kernel_regularizer="l2", name="dense_1")(inputs)
hidden = tf.keras.layers.BatchNormalization()(hidden)
outputs = tf.keras.layers.Dense(1, name="predictions")(hidden)
model = tf.keras.Model(inputs, outputs)
schedule = tf.keras.optimizers.schedules.CosineDecay(0.05, 60)
optimizer = tf.keras.optimizers.SGD(schedule, momentum=0.9)
loss_fn = tf.keras.losses.BinaryCrossentropy(from_logits=True)
accuracy = tf.keras.metrics.BinaryAccuracy(threshold=0.0)


@tf.function(jit_compile=True)
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y[:, None], logits) + sum(model.losses)
    grads = tape.gradient(loss, model.trainable_weights)
    grads, norm = tf.clip_by_global_norm(grads, 1.0)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    return loss, norm


for epoch in range(4):
    for features, labels in train:
        loss, norm = train_step(features, labels)
    accuracy.update_state(y[400:, None], model(x[400:], training=False))
    print(epoch, float(loss), float(norm), float(accuracy.result()))
    accuracy.reset_state()
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
