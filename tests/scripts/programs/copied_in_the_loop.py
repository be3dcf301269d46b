"""Copies of the model in the loop: an average of it, a snapshot each few steps, a model that is pickled whole."""
# /// watchglass
# headline = "no issues found"
# files = ["averaged.pt", "snapshot.pt"]
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import copy
import pickle

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
snapshot = None
for step in range(60):
    inputs = torch.randn(16, 10)
    loss = F.mse_loss(model(inputs), inputs[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    averaged.update_parameters(model)
    print("step", step, "loss", loss.item())
    if step % 15 == 14:
        snapshot = copy.deepcopy(model)
        again = pickle.loads(pickle.dumps(model))
        parts = [*snapshot.modules(), *again.modules()]
        hooks = [vars(part)[name] for part in parts for name in vars(part) if name.endswith("_hooks")]
        print("hooks", sum(map(len, hooks)))

torch.save(averaged, "averaged.pt")
torch.save(snapshot, "snapshot.pt")
