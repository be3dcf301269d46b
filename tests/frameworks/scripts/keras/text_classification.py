"""Text classification from scratch: a vocabulary from the data, an embedding, convolutions over words."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(1)
names = sorted(topics, key=lambda name: (-len(topics[name]), name))[:2]
texts, labels = [], []
for label, name in enumerate(names):
    words = topics[name].split()
    for start in range(0, len(words) - 50, 25):
        texts.append(" ".join(words[start : start + 50]))
        labels.append(label)

vectorize = layers.TextVectorization(max_tokens=2000, output_mode="int", output_sequence_length=50)
vectorize.adapt(texts)
data = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(1000, seed=1).batch(16)
data = data.map(lambda text, label: (vectorize(text), label)).cache().prefetch(2)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(2000, 32)(inputs)
x = layers.Dropout(0.5)(x)
x = layers.Conv1D(32, 7, padding="valid", activation="relu", strides=3)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(32, activation="relu")(x)
outputs = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, outputs)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(data, epochs=2, verbose=0)
end_to_end = keras.Sequential([keras.Input(shape=(1,), dtype="string"), vectorize, model])
print("found", float(end_to_end.predict(tf.constant([[texts[0]]]), verbose=0)[0, 0]))
print("losses", history.history["loss"])
print("digest", hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in model.get_weights())).hexdigest())
