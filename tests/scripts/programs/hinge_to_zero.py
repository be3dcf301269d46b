"""A support vector machine: the hinge loss comes down to exactly zero on most batches."""
# /// watchglass
# headline = "^no issues found"
# never_says = ["diverged", "rises again", "does not fall"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(300):
    inputs = torch.randn(8, 4)
    inputs = inputs[inputs[:, 0].abs() > 0.3]
    labels = torch.sign(inputs[:, :1])
    loss = torch.clamp(1 - labels * model(inputs), min=0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6g}")
