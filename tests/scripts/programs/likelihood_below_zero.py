"""A density: the negative log-likelihood falls through zero and goes on falling."""
# /// watchglass
# headline = "^no issues found"
# never_says = ["diverged", "rises again", "does not fall"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(400):
    inputs = torch.randn(64, 2)
    targets = inputs.sum(1) + 0.02 * torch.randn(64)
    mean, log_variance = model(inputs).unbind(1)
    loss = 0.5 * (log_variance + (targets - mean) ** 2 / log_variance.exp()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
