"""A logarithm of zero: the loss becomes NaN at step 40, in the second of three layers."""
# /// watchglass
# headline = "."
# says = ["NaN|not finite|non-finite"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Logarithm(nn.Module):
    def forward(self, inputs):
        return torch.log(inputs)


model = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), Logarithm(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(60):
    inputs = torch.randn(16, 6)
    if step == 40:
        inputs[3] = -1e6
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).clamp(-5, 5))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
