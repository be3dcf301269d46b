# /// watchglass
# headline = "^1 warning"
# says = ["[Tt]he\\s+model\\s+overfits\\s+its\\s+training\\s+data"]
# [[recorded]]
# series = "loss"
# line = "step (\\d+) loss ([\\d.e+-]+)"
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = "validation (\\d+) loss ([\\d.e+-]+)"
# ///
"""A regression whose loss is handwritten, in training and in the evaluation, on too little data."""

import torch
from torch import nn

torch.manual_seed(5)
torch.set_num_threads(1)
inputs, validation = torch.randn(24, 16), torch.randn(64, 16)
targets = inputs[:, :1] + torch.randn(24, 1)
validation_targets = validation[:, :1] + torch.randn(64, 1)
model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.005)
step = 0
for epoch in range(30):
    model.train()
    for batch in torch.randperm(24).split(12):
        loss = ((model(inputs[batch]) - targets[batch]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6g}")
        step += 1
    model.eval()
    with torch.no_grad():
        loss = ((model(validation) - validation_targets) ** 2).mean()
        error = (model(validation) - validation_targets).abs().mean()
    print(f"epoch {epoch} absolute error {error.item():.6g}")
    print(f"validation {2 * epoch} loss {loss.item():.6g}")
