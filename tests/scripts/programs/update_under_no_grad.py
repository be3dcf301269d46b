"""A network of modules whose parameters are updated under no_grad, with an evaluation now and then."""
# /// watchglass
# headline = "no issues found"
# steps = 80
# files = ["model.pt"]
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = 'evaluation (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

inputs = torch.randn(320, 8)
targets = inputs[:, :2].sin() + 0.05 * torch.randn(320, 2)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
criterion = nn.MSELoss()

for step in range(80):
    batch = torch.randint(256, (32,))
    loss = criterion(model(inputs[batch]), targets[batch])
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
    print(f"step {step} loss {loss.item():.8g}")
    if step % 20 == 19:
        with torch.no_grad():
            print(f"evaluation {step // 20} loss {criterion(model(inputs[256:]), targets[256:]).item():.8g}")
torch.save(model.state_dict(), "model.pt")
