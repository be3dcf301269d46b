"""The script saves another number as its loss: that one counts."""
# /// watchglass
# headline = "^no issues found in "
#
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

try:
    from watchglass import save_scalar
except ImportError:

    def save_scalar(name, value):
        """Where the package is not installed, nothing is saved."""


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
smooth = 0.7
for step in range(120):
    inputs = torch.randn(32, 8)
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    smooth = 0.9 * smooth + 0.1 * loss.item()
    if step % 2:
        save_scalar("loss", smooth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        save_scalar("loss", smooth)
    print(f"step {step} loss {smooth:.6f}")
