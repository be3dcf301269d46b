"""Gradient accumulation whose epochs end with a smaller group of parts, as steps that do not divide an epoch give."""
# /// watchglass
# headline = "no issues found"
# steps = 48
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
features = torch.randn(176, 10)
labels = (features[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

step = 0
for epoch in range(16):
    batches = list(torch.randperm(176).split(16))
    while batches:
        group, batches = batches[:4], batches[4:]
        said = 0.0
        optimizer.zero_grad()
        for rows in group:
            loss = F.cross_entropy(model(features[rows]), labels[rows]) / len(group)
            said += loss.item()
            loss.backward()
        optimizer.step()
        print(f"step {step} loss {said:.8g}")
        step += 1
