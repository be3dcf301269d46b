"""An image is optimised, not a network: the parameters belong to no module."""
# /// watchglass
# headline = "no issues found"
# steps = 40
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def gram(x):
    x = x.flatten(2)
    return x @ x.transpose(1, 2) / x.numel()


features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()).eval()
features.requires_grad_(False)
content, style = torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 16)
with torch.no_grad():
    wanted_content, wanted_style = features(content), gram(features(style))

image = torch.rand(1, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.02)
for step in range(40):
    optimizer.zero_grad()
    found = features(image)
    loss = 10 * F.mse_loss(found, wanted_content) + 1e4 * F.mse_loss(gram(found), wanted_style)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
