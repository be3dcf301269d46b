"""One layer was left out of the optimizer."""
# /// watchglass
# options = ["--save-interval", "4"]
# headline = "^1 warning, 1 info"
# says = ["0\\.weight has not changed in any of 8 captures up to step \\d+:\\s+no gradient was captured for it"]
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD([*model[2].parameters(), *model[4].parameters()], 0.1)
for step in range(200):
    inputs = torch.randn(32, 8)
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
