"""BYOL: a slow copy of the encoder makes targets under ``no_grad`` ahead of each update of encoder and predictor."""
# /// watchglass
# headline = "no issues found"
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
online = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=1e-3)
for step in range(80):
    inputs = torch.randn(64, 10)
    first, second = inputs + 0.1 * torch.randn(64, 10), inputs + 0.1 * torch.randn(64, 10)
    with torch.no_grad():
        wanted = target(second), target(first)
    alike = [F.cosine_similarity(predictor(online(view)), to).mean() for view, to in zip((first, second), wanted)]
    loss = 4 - 2 * (alike[0] + alike[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters()):
            slow.lerp_(fast, 0.01)
    print(f"step {step} loss {loss.item():.8g}")
