"""Gradient accumulation: the loss of each part is divided, and the script prints their sum."""
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
features = torch.randn(512, 10)
labels = (features[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
parts = 4

for step in range(60):
    said = 0.0
    for _ in range(parts):
        rows = torch.randint(512, (16,))
        loss = F.cross_entropy(model(features[rows]), labels[rows]) / parts
        said += loss.item()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {said:.8g}")
