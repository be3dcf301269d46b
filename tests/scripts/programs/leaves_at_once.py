"""A script that leaves by os._exit, past everything that runs at the end."""
# /// watchglass
# status = 3
# headline = "^failed after 4[01] training steps: the script ended with exit status 3"
# never_says = ["no issues found"]
# ///

import os
import time

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(41):
    inputs = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step} loss {loss.item():.6g}")
    optimizer.step()
for _ in range(100):
    time.sleep(0.01)  # a machine that stands still meanwhile takes no more than one of them
os._exit(3)
