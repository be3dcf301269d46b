"""A step that was kept from before the first optimizer is put back: PyTorch's hooks hear of it no more."""
# /// watchglass
# headline = "not judged: no hook of PyTorch reported 19 of 40 updates: SGD.step was replaced by a function that"
# says = [
#   "watchglass: SGD.step was replaced by a function that calls no hooks",
#   "19 training steps from step 21 on bypassed PyTorch's hooks",
# ]
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

kept = torch.optim.SGD.step
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    if step == 21:
        torch.optim.SGD.step = kept
    inputs = torch.randn(16, 10)
    loss = F.mse_loss(model(inputs), inputs[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
