"""Gradients are computed in every iteration, and nothing ever uses them: the optimizer's step was forgotten."""
# /// watchglass
# headline = "^1 error"
# says = ["[Tt]he optimizer never\\s+steps"]
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(120):
    inputs = torch.randn(16, 6)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    loss.backward()
print(f"loss {loss.item():.4f}")
