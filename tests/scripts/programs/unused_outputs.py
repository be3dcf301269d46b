"""Only one of several outputs of a chunk and of an unbind is trained on."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(10, 16), nn.Linear(16, 8)

    def forward(self, x):
        mean, spread = self.head(torch.relu(self.first(x))).chunk(2, dim=1)
        return (mean, *spread.unbind(1))


model = Parts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(60):
    inputs = torch.randn(16, 10)
    outputs = model(inputs)
    loss = F.mse_loss(outputs[0], inputs[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
