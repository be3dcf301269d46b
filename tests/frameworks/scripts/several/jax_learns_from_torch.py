"""A network of PyTorch is trained, then one of JAX learns from its answers."""
# /// watchglass
# headline = "^no issues found in 192 steps"
# steps = 192
# options = ["--save-interval", "8"]
# slow = true
# timing = true
#
# [[recorded]]
# series = "loss"
# line = 'teacher (\d+) (\S+)'
#
# [[recorded]]
# series = "model_2/loss"
# line = 'student (\d+) (\S+)'
# ///

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = (digits.data[:1536] / 16).astype("float32"), digits.target[:1536]

teacher = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
for epoch in range(4):
    for first in range(0, 1536, 64):
        batch = torch.from_numpy(images[first : first + 64]), torch.from_numpy(labels[first : first + 64])
        loss = nn.functional.cross_entropy(teacher(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("teacher", epoch * 24 + first // 64, loss.item())

keys = jax.random.split(jax.random.key(0))
student = {
    "hidden": {"w": jax.random.normal(keys[0], (64, 32)) / 8, "b": jnp.zeros(32)},
    "out": {"w": jax.random.normal(keys[1], (32, 10)) / 6, "b": jnp.zeros(10)},
}
adam = optax.adam(3e-3)


def loss_of(params, images, answers):
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = hidden @ params["out"]["w"] + params["out"]["b"]
    return optax.softmax_cross_entropy(logits, answers).mean()


@jax.jit
def step(params, state, images, answers):
    loss, gradients = jax.value_and_grad(loss_of)(params, images, answers)
    updates, state = adam.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


state = adam.init(student)
for epoch in range(4):
    for first in range(0, 1536, 64):
        with torch.no_grad():
            answers = teacher(torch.from_numpy(images[first : first + 64])).softmax(1).numpy()
        student, state, loss = step(student, state, images[first : first + 64], answers)
        print("student", 96 + epoch * 24 + first // 64, float(loss))

digest = hashlib.sha256()
for weight in [*(each.detach().numpy() for each in teacher.parameters()), *jax.tree.leaves(student)]:
    digest.update(np.asarray(weight).tobytes())
print(digest.hexdigest())
