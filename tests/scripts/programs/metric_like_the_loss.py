# /// watchglass
# headline = "no issues found"
# never_says = ["overfit", "validation loss"]
# ///
"""An evaluation that computes two squared errors of each output: which of them is the loss cannot be known.

The second one, the distance to what the model is later replaced by, rises all the time.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(320, 6)
targets = inputs[:, :1] - 0.5 * inputs[:, 1:2] + 0.3 * torch.randn(320, 1)
model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.003)
baseline = torch.zeros(64, 1)
for epoch in range(16):
    model.train()
    for batch in torch.randperm(256).split(32):
        optimizer.zero_grad()
        ((model(inputs[batch]) - targets[batch]) ** 2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        outputs = model(inputs[256:])
        from_baseline = ((outputs - baseline) ** 2).mean()
        loss = ((outputs - targets[256:]) ** 2).mean()
    print(f"epoch {epoch} loss {loss.item():.6g} distance {from_baseline.item():.6g}")
