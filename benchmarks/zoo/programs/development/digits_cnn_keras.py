"""Handwritten digits by a convolutional network with batch normalisation, from a tf.data pipeline."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "CNN with batch normalisation",
    "framework": "keras",
    "healthy": {
        "plain": "Adam, a step schedule by epoch",
        "sgd": "SGD with Nesterov momentum, cosine decay with warm-up",
        "group": "Adam, group instead of batch normalisation, batches of 16",
    },
    "faults": {
        "never_back_to_train": ("normalization_mode", "plain"),
        "evaluated_as_in_training": ("normalization_mode", "sgd"),
        "flips_and_large_erasing": ("augmentation_destroys", "plain"),
        "squared_error_on_class_numbers": ("wrong_loss", "group"),
        "epochs_schedule_per_batch": ("scheduler_per_batch", "plain"),
    },
}
EPOCHS = 6
zoo = Zoo(PROGRAM)

images, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(images, labels, test_size=0.25, random_state=1)
x, x_valid = ((part / 16 - 0.3).astype("float32").reshape(-1, 8, 8, 1) for part in (x, x_valid))
size = 16 if zoo.variant == "group" else 32


def augmented(image, label):
    if zoo.has("flips_and_large_erasing"):
        image = tf.image.random_flip_left_right(image)
        image = tf.image.rot90(image, tf.random.uniform((), 0, 4, dtype=tf.int32))
        corner = tf.random.uniform((2,), 0, 3, dtype=tf.int32)
        place = tf.range(8)
        rows = (place >= corner[0]) & (place < corner[0] + 6)
        columns = (place >= corner[1]) & (place < corner[1] + 6)
        image = tf.where((rows[:, None] & columns[None, :])[..., None], tf.reduce_mean(image), image)
        return image + tf.random.normal((8, 8, 1)), label
    return tf.roll(image, tf.random.uniform((2,), -1, 2, dtype=tf.int32), (0, 1)), label


train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000).map(augmented).batch(size, drop_remainder=True)
valid = tf.data.Dataset.from_tensor_slices((x_valid, y_valid)).batch(50)


def normalization():
    return layers.GroupNormalization(4) if zoo.variant == "group" else layers.BatchNormalization(momentum=0.9)


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv_1, self.norm_1 = layers.Conv2D(16, 3, padding="same"), normalization()
        self.conv_2, self.norm_2 = layers.Conv2D(32, 3, padding="same"), normalization()
        self.pool, self.last_pool, self.flatten = layers.MaxPooling2D(2), layers.AveragePooling2D(2), layers.Flatten()
        self.head = layers.Dense(1 if zoo.has("squared_error_on_class_numbers") else 10)

    def call(self, images, training=False):
        if zoo.has("never_back_to_train"):
            training = False
        if zoo.has("evaluated_as_in_training"):
            training = True
        mode = {} if zoo.variant == "group" else {"training": training}
        hidden = self.pool(keras.ops.relu(self.norm_1(self.conv_1(images), **mode)))
        hidden = self.last_pool(keras.ops.relu(self.norm_2(self.conv_2(hidden), **mode)))
        return self.head(self.flatten(hidden))


model = Classifier()
steps = len(train)
if zoo.variant == "sgd":
    schedule = keras.optimizers.schedules.CosineDecay(5e-3, (EPOCHS - 1) * steps, warmup_target=0.1, warmup_steps=steps)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
else:
    every = 2 if zoo.has("epochs_schedule_per_batch") else 2 * steps
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(3e-3, every, 0.3, staircase=True))
loss = "mse" if zoo.has("squared_error_on_class_numbers") else keras.losses.SparseCategoricalCrossentropy(True)
model.compile(optimizer=optimizer, loss=loss)
history = model.fit(train, epochs=EPOCHS, validation_data=valid, verbose=2)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    # As the program is deployed: one sample at a time.
    found = model.predict(x_valid, batch_size=1, verbose=0)
    found = np.round(found[:, 0]) if zoo.has("squared_error_on_class_numbers") else found.argmax(axis=1)
    return above_chance(float(np.mean(found == y_valid)), 0.1)
