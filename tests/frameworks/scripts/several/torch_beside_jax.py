"""A network of JAX and one of PyTorch are trained on the same batches; that of PyTorch with a rate far too high."""
# /// watchglass
# headline = "the learning rate is too high"
# options = ["--save-interval", "4"]
# says = ['ExplodingTensor|LossIncreasing|ExplodingGradient|WeightUpdateRatio']
# slow = true
# timing = true
#
# [[recorded]]
# series = "loss"
# line = 'jax (\d+) (\S+)'
#
# [[recorded]]
# series = "model_2/loss"
# line = 'torch (\d+) (\S+)'
# ///

import hashlib

import jax
import numpy as np
import optax
import torch
from flax import linen
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = (digits.data[:1536] / 16).astype("float32"), digits.target[:1536]


class Net(linen.Module):
    @linen.compact
    def __call__(self, inputs):
        return linen.Dense(10)(linen.relu(linen.Dense(32)(inputs)))


net = Net()
params = net.init(jax.random.key(0), images[:1])["params"]
state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(3e-3))


@jax.jit
def step(state, images, labels):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


other = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(other.parameters(), lr=300.0)
number = 0
for _ in range(3):
    for first in range(0, 1536, 64):
        state, loss = step(state, images[first : first + 64], labels[first : first + 64])
        print("jax", number, float(loss))
        optimizer.zero_grad()
        logits = other(torch.from_numpy(images[first : first + 64]))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels[first : first + 64]))
        loss.backward()
        optimizer.step()
        if loss.isfinite():
            print("torch", number + 1, loss.item())
        number += 2

digest = hashlib.sha256()
for weight in [*(each.detach().numpy() for each in other.parameters()), *jax.tree.leaves(state.params)]:
    digest.update(np.asarray(weight).tobytes())
print(digest.hexdigest())
