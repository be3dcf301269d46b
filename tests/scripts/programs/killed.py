"""Killed as by the system when memory runs out."""
# /// watchglass
# status = 137
# bare_status = -9
# headline = "^failed after 4[01] training steps: ended by SIGKILL"
# says = ["memory runs out"]
# never_says = ["no issues found"]
# ///

import os
import signal
import time

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    inputs = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step} loss {loss.item():.6g}")
    optimizer.step()
    if step == 40:
        for _ in range(100):
            time.sleep(0.01)  # a machine that stands still meanwhile takes no more than one of them
        os.kill(os.getpid(), signal.SIGKILL)
