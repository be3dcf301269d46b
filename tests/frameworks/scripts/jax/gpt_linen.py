"""A small GPT in linen: blocks with causal attention, AdamW with warm-up, clipping, tied embeddings."""
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
from flax import linen as nn

text = topics["lambda"] + topics["assignment"] + topics["class"] + topics["for"]
vocabulary = sorted(set(text))
tokens = np.array([vocabulary.index(character) for character in text], dtype="int32")
LENGTH, WIDTH = 32, 32


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, mask=mask)
        y = nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))
        return x + nn.Dense(WIDTH)(nn.gelu(y))


class GPT(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(len(vocabulary), WIDTH, name="wte")
        x = embed(tokens) + nn.Embed(LENGTH, WIDTH, name="wpe")(jnp.arange(LENGTH))
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = Block()(x, mask)
        return embed.attend(nn.LayerNorm()(x))


model = GPT()
params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), dtype=jnp.int32))
schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, 60)
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
opt_state = tx.init(params)


@jax.jit
def step(params, opt_state, inputs, targets):
    def loss_fn(params):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, inputs), targets).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


generator = np.random.default_rng(0)
for number in range(60):
    starts = generator.integers(len(tokens) - LENGTH - 1, size=8)
    window = np.stack([tokens[start : start + LENGTH + 1] for start in starts])
    params, opt_state, loss = step(params, opt_state, window[:, :-1], window[:, 1:])
    if number % 20 == 19:
        print(number, float(loss))
print("digest", hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))).hexdigest())
