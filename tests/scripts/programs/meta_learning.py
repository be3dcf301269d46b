"""MAML: an inner update with create_graph through functional calls, an outer step of the optimizer."""
# /// watchglass
# headline = "."
# steps = 40
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn
from torch.func import functional_call

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    total = 0
    for _ in range(3):
        amplitude, phase = 0.5 + torch.rand(1), torch.rand(1) * 3
        inputs = torch.rand(20, 1) * 4 - 2
        targets = amplitude * torch.sin(inputs + phase)
        weights = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, weights, (inputs[:10],)), targets[:10])
        gradients = torch.autograd.grad(inner, weights.values(), create_graph=True)
        adapted = {name: weight - 0.05 * g for (name, weight), g in zip(weights.items(), gradients)}
        total = total + nn.functional.mse_loss(functional_call(model, adapted, (inputs[10:],)), targets[10:])
    loss = total / 3
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
