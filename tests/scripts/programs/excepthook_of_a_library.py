"""A script whose library prints exceptions in its own way (rich, Lightning): the hook runs once, as ever."""
# /// watchglass
# status = 1
# headline = "^failed after 60 training steps: KeyError: 'epoch'"
# says = ["at +.*excepthook_of_a_library.py:36"]
# ///

import sys

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


def pretty(kind, error, trace):
    print("my own traceback:", kind.__name__, error)


sys.excepthook = pretty
settings = {"epochs": 3}


def read(name):
    return settings[name]


read("epoch")
