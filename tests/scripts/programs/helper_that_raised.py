"""A helper process is forked in the middle and raises; the script goes on, and ends by an exception for another reason."""
# /// watchglass
# status = 1
# headline = "^failed after 40 training steps: RuntimeError: the labels do not match"
# never_says = ["ValueError: no display .helper"]
# timing = true
# ///

import multiprocessing

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def plot():
    raise ValueError("no display")


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    inputs = torch.randn(8, 4)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 10:
        helper = multiprocessing.get_context("fork").Process(target=plot)
        helper.start()
        helper.join()
raise RuntimeError("the labels do not match")
