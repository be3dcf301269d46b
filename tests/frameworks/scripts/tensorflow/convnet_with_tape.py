"""A Keras model in a loop of tf.GradientTape, compiled by tf.function: the quickstart for experts."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import tensorflow as tf
from sklearn.datasets import load_digits

tf.keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)
x = (x.reshape(-1, 8, 8, 1) / 16).astype("float32")
train = tf.data.Dataset.from_tensor_slices((x[:1400], y[:1400])).shuffle(1400, seed=0).batch(32)
test = tf.data.Dataset.from_tensor_slices((x[1400:], y[1400:])).batch(100)


class MyModel(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.conv1 = tf.keras.layers.Conv2D(16, 3, activation="relu")
        self.flatten = tf.keras.layers.Flatten()
        self.d1 = tf.keras.layers.Dense(64, activation="relu")
        self.drop = tf.keras.layers.Dropout(0.2)
        self.d2 = tf.keras.layers.Dense(10)

    def call(self, x, training=False):
        return self.d2(self.drop(self.d1(self.flatten(self.conv1(x))), training=training))


model = MyModel()
loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
train_loss = tf.keras.metrics.Mean(name="train_loss")
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_object(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss(loss)


@tf.function
def test_step(images, labels):
    test_accuracy(labels, model(images, training=False))


for epoch in range(3):
    train_loss.reset_state()
    test_accuracy.reset_state()
    for images, labels in train:
        train_step(images, labels)
    for images, labels in test:
        test_step(images, labels)
    print(epoch, float(train_loss.result()), float(test_accuracy.result()))
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
