"""A model of Keras on TensorFlow is trained, then one of PyTorch, then that of Keras again, by a tape."""
# /// watchglass
# headline = "^no issues found in 168 steps"
# options = ["--save-interval", "8"]
# steps = 168
# slow = true
# timing = true
#
# [[recorded]]
# series = "model_2/loss"
# line = 'torch (\d+) (\S+)'
#
# [[recorded]]
# series = "loss"
# line = 'keras (\d+) (\S+)'
# ///

import hashlib
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
import torch
from sklearn.datasets import load_digits
from torch import nn

keras.utils.set_random_seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = (digits.data[:1536] / 16).astype("float32"), digits.target[:1536]

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), judge)
model.fit(images, labels, batch_size=64, epochs=3, verbose=0)

other = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(other.parameters(), lr=3e-3)
for epoch in range(3):
    for first in range(0, 1536, 64):
        logits = other(torch.from_numpy(images[first : first + 64]))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels[first : first + 64]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("torch", 72 + epoch * 24 + first // 64, loss.item())

adam = keras.optimizers.Adam(1e-3)


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = judge(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    adam.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for first in range(0, 1536, 64):
    loss = step(tf.constant(images[first : first + 64]), tf.constant(labels[first : first + 64]))
    print("keras", 144 + first // 64, float(loss))

digest = hashlib.sha256()
for weight in [*(each.detach().numpy() for each in other.parameters()), *model.get_weights()]:
    digest.update(np.asarray(weight).tobytes())
print(digest.hexdigest())
