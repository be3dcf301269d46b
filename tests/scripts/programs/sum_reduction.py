"""Losses summed over the batch in training, and their mean in validation: nothing is wrong."""
# /// watchglass
# headline = "no issues found"
# steps = 200
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = 'evaluation (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

inputs = torch.randn(512, 6)
targets = torch.stack([inputs[:, 0] * inputs[:, 1], inputs.sum(1)], 1) + 0.1 * torch.randn(512, 2)
model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion, metric = nn.MSELoss(reduction="sum"), nn.MSELoss()
for step in range(200):
    batch = torch.randint(384, (32,))
    optimizer.zero_grad()
    loss = criterion(model(inputs[batch]), targets[batch])
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
    if step % 20 == 19:
        with torch.no_grad():
            print(f"evaluation {step // 20} loss {metric(model(inputs[384:]), targets[384:]).item():.8g}")
