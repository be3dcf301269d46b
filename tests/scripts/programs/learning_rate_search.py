"""A search over learning rates that all do: fresh models, one after another, from slow to fast."""
# /// watchglass
# headline = "no issues found"
# steps = 150
# says = ["model_3"]
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
best = None
for rate in (0.003, 0.01, 0.03):
    torch.manual_seed(0)
    inputs = torch.randn(2000, 8)
    targets = (inputs @ torch.randn(8, 1)).sin()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for number in range(50):
        batch = torch.randint(2000, (64,))
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    print(f"rate {rate} loss {loss.item():.6f}")
    best = min(best or (loss.item(), rate), (loss.item(), rate))
print(f"best rate {best[1]}")
