"""An exception that is caught, and SystemExit with an object that has its text; an earlier exit is caught as well."""
# /// watchglass
# status = 1
# headline = "^failed after 40 training steps: the script ended with exit status 1: cannot go on: no batch left"
# never_says = ["no issues found"]
# ///

import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    inputs = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step} loss {loss.item():.6g}")
    optimizer.step()
try:
    sys.exit("not now")
except SystemExit:
    print("went on")
try:
    next(iter([]))
except StopIteration:
    raise SystemExit(RuntimeError("cannot go on: no batch left")) from None
