"""A second thread computes gradients of another model, while backwards of the training loop run."""
# /// watchglass
# headline = "^no issues found"
# steps = 40
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import threading
import time

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Slow(torch.autograd.Function):
    """As of a large layer, whose backward takes a while and lets other threads run."""

    @staticmethod
    def forward(context, inputs, seconds):
        context.seconds = seconds
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.seconds)
        return gradient, None


def influence():
    numbers = torch.Generator().manual_seed(1)
    for _ in range(25):
        inputs = torch.randn(8, 4, generator=numbers)
        Slow.apply(other(inputs), 0.013).square().mean().backward()


model, other = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
numbers = torch.Generator().manual_seed(0)
thread = threading.Thread(target=influence)
thread.start()
for step in range(40):
    inputs = torch.randn(8, 4, generator=numbers)
    loss = nn.functional.mse_loss(Slow.apply(model(inputs), 0.01), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
thread.join()
