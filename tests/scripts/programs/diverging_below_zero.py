"""A likelihood whose variance is driven to nothing: it falls far below zero and then diverges for good."""
# /// watchglass
# headline = "^[0-9]+ (error|warning)"
# says = ["[Tt]he\\s+learning\\s+rate\\s+jumped", "rose from 0.01 to 2 at step 120", "exp was given values above 88.7"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(200):
    if step == 120:
        optimizer.param_groups[0]["lr"] = 2.0
    inputs = torch.randn(64, 2)
    targets = 0.02 * torch.randn(64)
    mean, log_variance = model(inputs).unbind(1)
    loss = 0.5 * (log_variance + (targets - mean) ** 2 / log_variance.exp()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
