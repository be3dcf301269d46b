"""A small decoder in NNX: nnx.jit, nnx.value_and_grad, nnx.Optimizer, dropout with its own streams."""
# /// watchglass
# headline = ""
# options = ["--save-interval", "3"]
# slow = true
# timing = true
# ///

import hashlib
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

text = topics["lambda"] + topics["assignment"] + topics["class"] + topics["for"]
vocabulary = sorted(set(text))
tokens = np.array([vocabulary.index(character) for character in text], dtype="int32")
LENGTH, WIDTH = 32, 32


class Block(nnx.Module):
    def __init__(self, rngs):
        self.ln1, self.ln2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mha = nnx.MultiHeadAttention(num_heads=2, in_features=WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.dropout(self.mha(self.ln1(x), mask=mask))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.ln2(x)))))


class MiniGPT(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(len(vocabulary), WIDTH, rngs=rngs)
        self.place = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.block = Block(rngs)
        self.head = nnx.Linear(WIDTH, len(vocabulary), rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.block(self.embed(tokens) + self.place(jnp.arange(LENGTH))))


def loss_fn(model, inputs, targets):
    return optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean()


@nnx.jit
def train_step(model, optimizer, metrics, inputs, targets):
    loss, grads = nnx.value_and_grad(loss_fn)(model, inputs, targets)
    metrics.update(loss=loss)
    optimizer.update(model, grads)


model = MiniGPT(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
generator = np.random.default_rng(0)
for number in range(45):
    starts = generator.integers(len(tokens) - LENGTH - 1, size=8)
    window = np.stack([tokens[start : start + LENGTH + 1] for start in starts])
    train_step(model, optimizer, metrics, window[:, :-1], window[:, 1:])
    if number % 15 == 14:
        print(number, float(metrics.compute()["loss"]))
        metrics.reset()
leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest())
