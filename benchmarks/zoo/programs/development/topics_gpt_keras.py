"""A small decoder on the topics of Python's own help, by characters, with Keras's attention layer."""

from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers, ops

from zoo import Zoo

PROGRAM = {
    "task": "characters of help topics",
    "architecture": "transformer decoder",
    "framework": "keras",
    "healthy": {
        "plain": "AdamW, warm-up and cosine decay",
        "smoothed": "AdamW with warm-up, label smoothing 0.05, clipping at 1, tied embeddings",
    },
    "faults": {
        "mask_left_out": ("causal_mask_missing", "plain"),
        "targets_are_inputs": ("labels_not_shifted", "plain"),
        "smoothing_of_97_percent": ("label_smoothing_too_strong", "smoothed"),
        "schedule_made_anew_every_five_steps": ("learning_rate_restarts", "plain"),
    },
}
STEPS = 260
LENGTH, WIDTH, HEADS = 40, 64, 4
zoo = Zoo(PROGRAM)

text = "\n".join(topics[name] for name in sorted(topics))[:300_000]
characters = sorted(set(text))
ids = {character: number for number, character in enumerate(characters)}
tokens = np.array([ids[character] for character in text], dtype="int32")
split = int(0.9 * len(tokens))
SIZE = len(characters)


def windows(data, count):
    starts = np.random.randint(len(data) - LENGTH - 1, size=count)
    inputs = np.stack([data[start : start + LENGTH] for start in starts])
    if zoo.has("targets_are_inputs"):
        return inputs, inputs
    return inputs, np.stack([data[start + 1 : start + 1 + LENGTH] for start in starts])


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.wide, self.narrow = layers.Dense(4 * WIDTH, activation="gelu"), layers.Dense(WIDTH)

    def build(self, shape):
        self.norm_1.build(shape)
        self.norm_2.build(shape)
        self.attention.build(shape, shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 4 * WIDTH))

    def call(self, hidden):
        normed = self.norm_1(hidden)
        hidden = hidden + self.attention(normed, normed, use_causal_mask=not zoo.has("mask_left_out"))
        return hidden + self.narrow(self.wide(self.norm_2(hidden)))


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        start = keras.initializers.RandomNormal(stddev=0.02)
        self.tokens = layers.ReversibleEmbedding(
            SIZE, WIDTH, tie_weights=zoo.variant == "smoothed", embeddings_initializer=start
        )
        self.positions = layers.Embedding(LENGTH, WIDTH, embeddings_initializer=start)
        self.blocks = [Block(), Block()]
        self.norm = layers.LayerNormalization()

    def call(self, inputs):
        hidden = self.tokens(inputs) + self.positions(ops.arange(LENGTH))
        for block in self.blocks:
            hidden = block(hidden)
        return self.tokens(self.norm(hidden), reverse=True)


@keras.saving.register_keras_serializable()
class Rate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        step = ops.cast(step, "float32")
        if zoo.has("schedule_made_anew_every_five_steps"):
            step = step % 5
        warm = ops.minimum(1.0, (step + 1) / 30)
        return 3e-3 * warm if zoo.variant == "smoothed" else 3e-3 * warm * (0.55 + 0.45 * ops.cos(np.pi * step / STEPS))


model = Decoder()
smoothing = 0.97 if zoo.has("smoothing_of_97_percent") else 0.05
if zoo.variant == "smoothed":
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    encoded = keras.utils.to_categorical
else:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def encoded(targets, _):
        return targets


model.compile(
    optimizer=keras.optimizers.AdamW(Rate(), weight_decay=0.01, clipnorm=1.0 if zoo.variant == "smoothed" else None),
    loss=loss,
)
x, y = windows(tokens[:split], 12 * STEPS)
x_valid, y_valid = windows(tokens[split:], 96)
history = model.fit(
    x, encoded(y, SIZE), batch_size=12, epochs=1, validation_data=(x_valid, encoded(y_valid, SIZE)), verbose=2
)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    """The likelihood of the next character, of which nothing can leak from behind."""
    generator = np.random.default_rng(0)
    starts = generator.integers(len(tokens) - split - LENGTH - 1, size=1024)
    inputs = np.stack([tokens[split:][start : start + LENGTH] for start in starts])
    following = np.array([tokens[split:][start + LENGTH] for start in starts])
    logits = model.predict(inputs, verbose=0)[:, -1].astype("float64")
    surprise = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(1024), following]).mean()
    frequencies = np.bincount(tokens[:split], minlength=SIZE) + 1.0
    guess = -np.log(frequencies / frequencies.sum())[following].mean()
    return 1 - surprise / guess
