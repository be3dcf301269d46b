"""A problem that is solved exactly: the loss falls from above 1 to nothing within some steps, and wavers there."""
# /// watchglass
# headline = "^1 warning"
# says = ["[Tt]he\\s+layers\\s+have\\s+nothing\\s+non-linear\\s+between\\s+them"]
# never_says = ["diverged", "error:"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(6, 32), nn.Linear(32, 1))
truth = torch.randn(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
for step in range(400):
    inputs = torch.randn(64, 6)
    loss = nn.functional.mse_loss(model(inputs), inputs @ truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
