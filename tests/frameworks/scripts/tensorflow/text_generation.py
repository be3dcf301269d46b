"""Characters by a GRU that carries its state, with a vocabulary from the text."""
# /// watchglass
# headline = "no issues found"
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
from pydoc_data.topics import topics

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(2)
text = topics["lambda"] + topics["assignment"] + topics["for"] + topics["class"]
vocabulary = sorted(set(text))
ids = {character: number for number, character in enumerate(vocabulary)}
encoded = np.array([ids[character] for character in text], dtype="int32")
windows = tf.data.Dataset.from_tensor_slices(encoded).batch(33, drop_remainder=True)
data = windows.map(lambda w: (w[:-1], w[1:])).shuffle(500, seed=2).batch(16, drop_remainder=True)


class Writer(tf.keras.Model):
    def __init__(self, size):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(size, 16)
        self.gru = tf.keras.layers.GRU(48, return_sequences=True, return_state=True)
        self.dense = tf.keras.layers.Dense(size)

    def call(self, inputs, states=None, training=False):
        x = self.embedding(inputs, training=training)
        x, states = self.gru(x, initial_state=states, training=training)
        return self.dense(x, training=training), states


model = Writer(len(vocabulary))
optimizer = tf.keras.optimizers.Adam(5e-3)
objective = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(inputs, labels):
    with tf.GradientTape() as tape:
        predictions, _ = model(inputs, training=True)
        loss = objective(labels, predictions)
    grads = tape.gradient(loss, model.trainable_variables)
    grads, _ = tf.clip_by_global_norm(grads, 1.0)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for epoch in range(3):
    losses = [float(train_step(inputs, labels)) for inputs, labels in data]
    print(epoch, losses[0], losses[-1])
states, written = None, [ids["T"]]
for _ in range(20):
    logits, states = model(tf.constant([[written[-1]]]), states=states)
    written.append(int(tf.argmax(logits[0, -1])))
print("".join(vocabulary[number] for number in written).encode())
print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest())
