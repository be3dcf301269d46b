"""A perceptron as a list of weights with hand-written SGD: the first tutorial."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import grad, jit, random, vmap
from jax.scipy.special import logsumexp
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
targets = np.eye(10, dtype="float32")[labels]


def random_layer_params(m, n, key, scale=1e-1):
    w_key, b_key = random.split(key)
    return scale * random.normal(w_key, (n, m)), scale * random.normal(b_key, (n,))


def init_network_params(sizes, key):
    keys = random.split(key, len(sizes))
    return [random_layer_params(m, n, k) for m, n, k in zip(sizes[:-1], sizes[1:], keys)]


def predict(params, image):
    activations = image
    for w, b in params[:-1]:
        activations = jax.nn.relu(jnp.dot(w, activations) + b)
    final_w, final_b = params[-1]
    logits = jnp.dot(final_w, activations) + final_b
    return logits - logsumexp(logits)


batched_predict = vmap(predict, in_axes=(None, 0))


def loss(params, images, targets):
    return -jnp.mean(batched_predict(params, images) * targets)


@jit
def update(params, x, y):
    grads = grad(loss)(params, x, y)
    return [(w - 0.5 * dw, b - 0.5 * db) for (w, b), (dw, db) in zip(params, grads)]


params = init_network_params([64, 64, 32, 10], random.key(0))
for epoch in range(3):
    for start in range(0, 1536, 64):
        params = update(params, images[start : start + 64], targets[start : start + 64])
    found = batched_predict(params, images[1536:]).argmax(axis=1)
    print(epoch, float(loss(params, images, targets)), float((found == labels[1536:]).mean()))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))).hexdigest())
