"""A small decoder on the topics of Python's own help, by characters, in Flax's NNX."""

from pydoc_data.topics import topics

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from zoo import Zoo

PROGRAM = {
    "task": "characters of help topics",
    "architecture": "transformer decoder",
    "framework": "jax",
    "healthy": {"plain": "AdamW, warm-up and cosine decay"},
    "faults": {
        "mask_left_out": ("causal_mask_missing", "plain"),
        "targets_are_inputs": ("labels_not_shifted", "plain"),
    },
}
STEPS = 200
LENGTH, WIDTH, HEADS = 40, 64, 4
zoo = Zoo(PROGRAM)

text = "\n".join(topics[name] for name in sorted(topics))[:300_000]
characters = sorted(set(text))
ids = {character: number for number, character in enumerate(characters)}
tokens = np.array([ids[character] for character in text], dtype="int32")
split = int(0.9 * len(tokens))
train, valid = tokens[:split], tokens[split:]
SIZE = len(characters)


def batch(data, size):
    starts = np.random.randint(len(data) - LENGTH - 1, size=size)
    inputs = np.stack([data[start : start + LENGTH] for start in starts])
    if zoo.has("targets_are_inputs"):
        return inputs, inputs
    return inputs, np.stack([data[start + 1 : start + 1 + LENGTH] for start in starts])


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm_1, self.norm_2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.wide, self.narrow = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, hidden):
        mask = None if zoo.has("mask_left_out") else jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), dtype=bool))
        hidden = hidden + self.attention(self.norm_1(hidden), mask=mask)
        return hidden + self.narrow(nnx.gelu(self.wide(self.norm_2(hidden))))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        start = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(SIZE, WIDTH, embedding_init=start, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, embedding_init=start, rngs=rngs)
        self.block_1, self.block_2 = Block(rngs), Block(rngs)
        self.norm, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, SIZE, use_bias=False, rngs=rngs)

    def __call__(self, inputs):
        hidden = self.tokens(inputs) + self.positions(jnp.arange(LENGTH))
        return self.head(self.norm(self.block_2(self.block_1(hidden))))


def loss_of(model, inputs, targets):
    return optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean()


@nnx.jit
def train_step(model, optimizer, inputs, targets):
    loss, gradients = nnx.value_and_grad(loss_of)(model, inputs, targets)
    optimizer.update(model, gradients)
    return loss


model = Decoder(nnx.Rngs(zoo.seed))
schedule = optax.warmup_cosine_decay_schedule(1e-4, 3e-3, 30, STEPS, 3e-4)
optimizer = nnx.Optimizer(model, optax.adamw(schedule, weight_decay=0.01), wrt=nnx.Param)
evaluate = nnx.jit(loss_of)

for step in range(STEPS):
    loss = train_step(model, optimizer, *batch(train, 12))
    zoo.trained(step, float(loss))
    if step % 50 == 49:
        validation = float(np.mean([evaluate(model, *batch(valid, 12)) for _ in range(4)]))
        zoo.validated(step, validation)
        print(f"step {step + 1}: loss {loss:.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    """The likelihood of the next character, of which nothing can leak from behind."""
    generator = np.random.default_rng(0)
    starts = generator.integers(len(valid) - LENGTH - 1, size=1024)
    inputs = np.stack([valid[start : start + LENGTH] for start in starts])
    following = np.array([valid[start + LENGTH] for start in starts])
    surprise = optax.softmax_cross_entropy_with_integer_labels(model(inputs)[:, -1], following).mean()
    frequencies = np.bincount(train, minlength=SIZE) + 1.0
    guess = -np.log(frequencies / frequencies.sum())[following].mean()
    return 1 - float(surprise) / guess
