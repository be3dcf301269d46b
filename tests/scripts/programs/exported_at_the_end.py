"""A trained model is exported, symbolically traced and scripted at the end."""
# /// watchglass
# headline = "no issues found"
# steps = 40
# slow = true
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import warnings

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(10, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    inputs = torch.randn(16, 10)
    loss = F.mse_loss(model(inputs), inputs[:, :4])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())

model.eval()
inputs = torch.ones(2, 10)
program = torch.export.export(model, (inputs,))
print(program.graph)
traced = torch.fx.symbolic_trace(model)
print(traced.code)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    scripted = torch.jit.script(model)
    print(scripted.code, torch.jit.trace(model, inputs).code)
for made in (program.module(), traced, scripted):
    print(made(inputs).tolist() == model(inputs).tolist())
