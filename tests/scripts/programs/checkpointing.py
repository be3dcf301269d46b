"""Activation checkpointing, reentrant and not: forwards inside the backward are no forwards of the step."""
# /// watchglass
# headline = "no issues found"
# steps = 50
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(0)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4))
        self.last = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        for number, block in enumerate(self.blocks):
            hidden = checkpoint(block, hidden, use_reentrant=number % 2 == 0)
        return self.last(hidden)


model = Deep()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(50):
    inputs = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1] * inputs[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
