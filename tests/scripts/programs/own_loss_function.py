# /// watchglass
# headline = "no issues found"
# [[recorded]]
# series = "loss/handwritten"
# mode = "EVAL"
# line = "validation (\\d+) loss ([\\d.e+-]+)"
# ///
"""A function of the script is the loss of micro-batches, divided by their number, and of the evaluation, undivided."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
PARTS = 4


def loss_function(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    error = outputs.squeeze(1) - targets
    return error.pow(2).mean()


inputs = torch.randn(320, 6)
targets = inputs[:, 0] - 0.5 * inputs[:, 1] + 0.1 * torch.randn(320)
model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(12):
    model.train()
    for batch in torch.randperm(256).split(64):
        for part in batch.split(64 // PARTS):
            (loss_function(model(inputs[part]), targets[part]) / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.inference_mode():
        loss = loss_function(model(inputs[256:]), targets[256:])
    print(f"validation {epoch} loss {loss.item():.6g}")
