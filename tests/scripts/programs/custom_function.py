"""A custom autograd function, a module with a buffer that it updates, and a hook of the script on a tensor."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.outer = nn.Linear(32, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        hidden = StraightThrough.apply(self.inner(inputs))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.5)
        return self.outer(hidden)


model = Binary()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(60):
    inputs = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :2].sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
print("calls", model.calls.item())
