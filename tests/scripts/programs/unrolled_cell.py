"""A recurrent cell that the script calls for each element of a sequence: many calls of a model in one step."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

cell, readout = nn.GRUCell(2, 24), nn.Linear(24, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *readout.parameters()], lr=5e-3)
for step in range(60):
    sequence = torch.randn(12, 16, 2)
    hidden = torch.zeros(16, 24)
    for element in sequence:
        hidden = cell(element, hidden)
    loss = nn.functional.mse_loss(readout(hidden), sequence[:, :, :1].mean(0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
