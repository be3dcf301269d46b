"""Gradients are estimated in inference mode, so that nothing counts how often they change; no backward runs."""
# /// watchglass
# headline = "^not judged: .* of .* rules that apply had no data: ExplodingTensor"
# never_says = ["capture is off"]
# steps = 60
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(32, 4)
targets = inputs.sum(1, keepdim=True)


def score():
    return nn.functional.mse_loss(model(inputs), targets)


for step in range(60):
    with torch.inference_mode():
        gradients = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for _ in range(4):
            noise = [torch.randn_like(parameter) for parameter in model.parameters()]
            scores = []
            for sign in (0.1, -0.2, 0.1):
                for parameter, change in zip(model.parameters(), noise):
                    parameter.data.add_(change, alpha=sign)
                scores.append(score().item())
            for gradient, change in zip(gradients, noise):
                gradient.add_(change, alpha=(scores[0] - scores[1]) / 0.8)
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.grad = gradient
    optimizer.step()
    print(f"step {step} score {scores[-1]:.6g}")
