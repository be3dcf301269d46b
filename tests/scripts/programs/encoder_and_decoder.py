"""An encoder and a decoder with an optimizer each, trained together on one loss."""
# /// watchglass
# headline = "no issues found"
# steps = 80
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6))
decoder = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 12))
optimizers = [torch.optim.Adam(part.parameters(), lr=3e-3) for part in (encoder, decoder)]
data = torch.randn(256, 3) @ torch.randn(3, 12)

for step in range(80):
    batch = data[torch.randint(256, (32,))]
    loss = F.mse_loss(decoder(encoder(batch)), batch)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
