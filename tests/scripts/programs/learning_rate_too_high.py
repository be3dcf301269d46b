"""A learning rate a hundred times too high: the loss rises from the first steps on."""
# /// watchglass
# headline = "^[0-9]+ (error|warning)"
# says = ["[Tt]he\\s+learning\\s+rate\\s+is\\s+too\\s+high"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

inputs = torch.randn(512, 20)
targets = inputs @ torch.randn(20, 1)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
for step in range(60):
    batch = torch.randint(0, 512, (32,))
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
