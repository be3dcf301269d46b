"""Weight and spectral normalisation by parametrization, and pruning in the middle of the training."""
# /// watchglass
# headline = "."
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(8, 32)),
    nn.LeakyReLU(),
    parametrizations.spectral_norm(nn.Linear(32, 32)),
    nn.LeakyReLU(),
    nn.Linear(32, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    if step == 30:
        prune.l1_unstructured(model[4], "weight", amount=0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    inputs = torch.randn(32, 8)
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
