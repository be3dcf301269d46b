"""Adversarial training (FGSM): a first backward for the gradient of the inputs, a second one that trains."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
features = torch.randn(512, 10)
labels = (features[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for step in range(60):
    rows = torch.randint(512, (32,))
    inputs = features[rows].clone().requires_grad_()
    F.cross_entropy(model(inputs), labels[rows]).backward()
    attacked = (inputs + 0.05 * inputs.grad.sign()).detach()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(attacked), labels[rows])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.8g}")
