"""Three kinds of wine from a chemical analysis: batch normalisation, and a training step of its own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "wine",
    "architecture": "MLP with batch normalisation",
    "framework": "keras",
    "healthy": {
        "plain": "Adam, batches of 32, own train_step",
        "layer_norm": "AdamW, layer instead of batch normalisation, batches of 4",
    },
    "faults": {
        "batches_of_two": ("normalization_batch_of_one", "plain"),
        "evaluation_mode_from_the_start": ("normalization_mode", "plain"),
        "columns_repeated_with_noise": ("correlated_features", "layer_norm"),
        "summed_loss": ("loss_summed", "layer_norm"),
    },
}
zoo = Zoo(PROGRAM)

table, kinds = load_wine(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(table, kinds, test_size=0.35, random_state=4, stratify=kinds)
mean, std = x.mean(axis=0), x.std(axis=0)
x, x_valid = (((part - mean) / std).astype("float32") for part in (x, x_valid))
if zoo.has("columns_repeated_with_noise"):
    # One measurement many times, and the others drowned in what is common to all of them.
    x, x_valid = (np.tile(part + part[:, :1] * 6, (1, 8)) for part in (x, x_valid))

batched = zoo.variant == "plain"


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = layers.Dense(32), layers.Dense(32), layers.Dense(3)
        if batched:
            self.first_norm, self.second_norm = (layers.BatchNormalization(momentum=0.9) for _ in range(2))
        else:
            self.first_norm, self.second_norm = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, inputs, training=False):
        mode = {"training": training} if batched else {}
        hidden = keras.ops.relu(self.first_norm(self.first(inputs), **mode))
        hidden = keras.ops.relu(self.second_norm(self.second(hidden), **mode))
        return self.head(hidden)

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            logits = self(inputs, training=not zoo.has("evaluation_mode_from_the_start"))
            loss = self.compute_loss(x=inputs, y=labels, y_pred=logits)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


size = 2 if zoo.has("batches_of_two") else 32 if batched else 4
optimizer = keras.optimizers.Adam(5e-3) if batched else keras.optimizers.AdamW(1e-3)
epochs = 40 if batched else 12
reduction = "sum_over_batch_size"
if zoo.has("summed_loss"):
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    reduction = "sum"
if zoo.has("batches_of_two"):
    epochs = 4
model = Classifier()
model.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction))
history = model.fit(x, y, batch_size=size, epochs=epochs, validation_data=(x_valid, y_valid), verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    found = model.predict(x_valid, batch_size=3, verbose=0).argmax(axis=1)
    return above_chance(float(np.mean(found == y_valid)), 1 / 3)
