"""LBFGS: a closure that is called several times a step; the script prints what ``step`` returns."""
# /// watchglass
# headline = "no issues found"
# steps = 30
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
features = torch.randn(256, 6)
target = torch.sin(features[:, :1]) + 0.1 * torch.randn(256, 1)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(model(features), target)
    loss.backward()
    return loss


for step in range(30):
    loss = optimizer.step(closure)
    print(f"step {step} loss {loss.item():.8g}")
