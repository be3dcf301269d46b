"""The whole training step in one compiled function, with the eager backend."""
# /// watchglass
# headline = "no issues found"
# steps = 40
# slow = true
# timing = true
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(backend="aot_eager")
def forward(inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)


for step in range(40):
    inputs = torch.randn(32, 8)
    loss = forward(inputs, inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
