"""A small diffusion model with an averaged copy, sampled from at the end: many forwards without a loss."""
# /// watchglass
# headline = "no issues found"
# files = ["samples.pt"]
# steps = 80
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


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, points, times):
        return self.layers(torch.cat([points, times[:, None]], 1))


model = Denoiser()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(80):
    angle = torch.rand(64) * 6.2832
    clean = torch.stack([angle.cos(), angle.sin()], 1)
    times, noise = torch.rand(64), torch.randn(64, 2)
    noisy = clean * (1 - times[:, None]).sqrt() + noise * times[:, None].sqrt()
    loss = F.mse_loss(model(noisy, times), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.05)
    print(f"step {step} loss {loss.item():.8g}")
with torch.no_grad():
    points = torch.randn(16, 2)
    for number in range(20, 0, -1):
        points = points - 0.05 * average(points, torch.full((16,), number / 20))
torch.save(points, "samples.pt")
