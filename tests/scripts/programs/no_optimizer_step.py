"""Backward runs and no optimizer steps."""
# /// watchglass
# headline = "^1 error"
# says = ["[Tt]he optimizer never\\s+steps"]
# never_says = ["no issues found"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    inputs = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step} loss {loss.item():.6g}")
