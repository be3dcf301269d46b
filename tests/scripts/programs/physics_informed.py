"""A physics-informed network: derivatives of the output by autograd.grad with create_graph, several loss terms."""
# /// watchglass
# headline = "."
# steps = 80
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(80):
    times = (torch.rand(64, 1) * 2).requires_grad_()
    values = model(times)
    (slope,) = torch.autograd.grad(values.sum(), times, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), times, create_graph=True)
    start = torch.zeros(1, 1, requires_grad=True)
    at_start = model(start)
    (slope_at_start,) = torch.autograd.grad(at_start.sum(), start, create_graph=True)
    loss = (curvature + values).square().mean() + (at_start - 1).square().mean() + slope_at_start.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
