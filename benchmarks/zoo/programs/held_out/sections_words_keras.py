"""Which section of Python's help a passage is from: words, an embedding and a mean."""

import re
from collections import Counter
from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "sections of help",
    "architecture": "bag of embeddings",
    "framework": "keras",
    "healthy": {
        "adam": "Adam, dropout 0.2",
        "sgd": "SGD with momentum, clipping at 1",
    },
    "faults": {
        "sorted_by_section": ("data_not_shuffled", "adam"),
        "epsilon_of_one": ("adam_epsilon", "adam"),
        "clipped_at_a_millionth": ("clipped_to_nothing", "sgd"),
        "rate_of_a_thousand": ("learning_rate_too_high", "sgd"),
    },
}
WORDS, LENGTH = 1200, 40
zoo = Zoo(PROGRAM)

largest = sorted(topics, key=lambda name: (-len(topics[name]), name))[:6]
passages, sections = [], []
for number, name in enumerate(largest):
    words = re.findall(r"[a-z]{2,}", topics[name].lower())
    for start in range(0, len(words) - LENGTH, 20):
        passages.append(words[start : start + LENGTH])
        sections.append(number)
frequent = Counter(word for words in passages for word in words).most_common(WORDS - 1)
known = {word: number for number, (word, _) in enumerate(frequent, 1)}
x = np.array([[known.get(word, 0) for word in words] for words in passages], dtype="int32")
y = np.array(sections)
# Passages overlap: whole stretches are held out.
held = (np.arange(len(x)) // 12) % 5 == 4
x, y, x_valid, y_valid = x[~held], y[~held], x[held], y[held]

start = "uniform" if zoo.variant == "adam" else keras.initializers.RandomNormal(stddev=0.3)
model = keras.Sequential(
    [
        keras.Input((LENGTH,), dtype="int32"),
        layers.Embedding(WORDS, 32, embeddings_initializer=start),
        layers.GlobalAveragePooling1D(),
        layers.Dense(32, activation="relu"),
        layers.Dropout(0.2 if zoo.variant == "adam" else 0.0),
        layers.Dense(6, activation="softmax"),
    ]
)
if zoo.variant == "adam":
    optimizer = keras.optimizers.Adam(5e-3, epsilon=1.0 if zoo.has("epsilon_of_one") else 1e-7)
else:
    rate = 1000.0 if zoo.has("rate_of_a_thousand") else 0.1
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, clipnorm=1e-6 if zoo.has("clipped_at_a_millionth") else 1.0)
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=6 if zoo.variant == "adam" else 8,
    shuffle=not zoo.has("sorted_by_section"),
    validation_data=(x_valid, y_valid),
    verbose=2,
)
zoo.fitted(history.history)


@zoo.measured_by
def skill():
    found = model.predict(x_valid, verbose=0).argmax(axis=1)
    return above_chance(float(np.mean([(found[y_valid == kind] == kind).mean() for kind in range(6)])), 1 / 6)
