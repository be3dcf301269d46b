"""An optimizer that is a plain class of the script, with momentum, and gradients of two micro-batches."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Momentum:
    def __init__(self, parameters, lr, beta=0.9):
        self.parameters, self.lr, self.beta = list(parameters), lr, beta
        self.velocities = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        for p, v in zip(self.parameters, self.velocities):
            v.mul_(self.beta).add_(p.grad)
            p.data -= self.lr * v


inputs = torch.randn(256, 6)
labels = (inputs[:, 0] > inputs[:, 1]).long()
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = Momentum(model.parameters(), lr=0.05)

for step in range(60):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(2):
        batch = torch.randint(256, (16,))
        loss = F.cross_entropy(model(inputs[batch]), labels[batch]) / 2
        loss.backward()
        total += loss.item()
    optimizer.step()
    print(f"step {step} loss {total:.8g}")
