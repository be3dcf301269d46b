"""PyTorch warns of what a script does, and names its line."""
# /// watchglass
# headline = "."
# steps = 40
# ///

import warnings

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def show(message, category, filename, line, file=None, text=None):
    print("warned of", str(message).split(".")[0][:60], "in", filename.rsplit("/")[-1], "line", line)


warnings.showwarning = show

model = nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
scheduler.step()  # before the optimizer's first step
for step in range(40):
    inputs = torch.randn(16, 10)
    loss = F.mse_loss(model(inputs), inputs[:, 0])  # of another shape
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step(step)  # deprecated
with torch.no_grad():
    F.l1_loss(model(inputs), inputs[:, 0])
