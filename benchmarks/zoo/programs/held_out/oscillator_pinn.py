"""A damped oscillation from its differential equation, by a network that is differentiated twice."""

import math

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "a differential equation",
    "architecture": "physics-informed network",
    "healthy": {
        "lbfgs": "LBFGS with a closure, tanh",
        "adam": "Adam with a falling rate, random points in every step, sine units",
    },
    "faults": {
        "closure_without_zero_grad": ("zero_grad_missing", "lbfgs"),
        "twelve_sigmoid_layers": ("too_deep", "adam"),
        "rate_of_one_half": ("learning_rate_too_high", "adam"),
        "steep_tanh_of_unscaled_weights": ("activation_saturating", "lbfgs"),
    },
}
DAMPING, STIFFNESS = 0.4, 9.0
zoo = Zoo(PROGRAM)


def solution(t):
    """Of u'' + 2 DAMPING u' + STIFFNESS u = 0 with u(0) = 1, u'(0) = 0."""
    frequency = math.sqrt(STIFFNESS - DAMPING**2)
    return torch.exp(-DAMPING * t) * (torch.cos(frequency * t) + DAMPING / frequency * torch.sin(frequency * t))


class Sine(nn.Module):
    def forward(self, values):
        return torch.sin(values)


depth, width = 3, 24
activation = nn.Tanh if zoo.variant == "lbfgs" else Sine
if zoo.has("twelve_sigmoid_layers"):
    depth, activation = 12, nn.Sigmoid
layers = [nn.Linear(1, width), activation()]
for _ in range(depth - 1):
    layers += [nn.Linear(width, width), activation()]
model = nn.Sequential(*layers, nn.Linear(width, 1))
if zoo.has("steep_tanh_of_unscaled_weights"):
    for layer in model[:-1]:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=2.0)


def derivative(values, points):
    return torch.autograd.grad(values.sum(), points, create_graph=True)[0]


def criterion(points):
    points = points.clone().requires_grad_()
    values = model(points)
    first = derivative(values, points)
    residual = derivative(first, points) + 2 * DAMPING * first + STIFFNESS * values
    start = torch.zeros(1, 1, requires_grad=True)
    at_start = model(start)
    initial = (at_start - 1) ** 2 + derivative(at_start, start) ** 2
    return (residual**2).mean() / STIFFNESS + 10 * initial.sum()


grid = torch.linspace(0, 3, 100).unsqueeze(1)
if zoo.variant == "lbfgs":
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure():
        if not zoo.has("closure_without_zero_grad"):
            optimizer.zero_grad()
        loss = criterion(grid)
        loss.backward()
        return loss

    for step in range(100):
        loss = optimizer.step(closure)
        zoo.trained(step, loss.item())
        if step % 20 == 19:
            print(f"iteration {step + 1}: {loss.item():.3e}")
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if zoo.has("rate_of_one_half") else 5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    for step in range(1000):
        optimizer.zero_grad()
        loss = criterion(torch.rand(48, 1) * 3)
        loss.backward()
        optimizer.step()
        scheduler.step()
        zoo.trained(step, loss.item())
        if step % 200 == 199:
            print(f"step {step + 1}: {loss.item():.3e}")


@zoo.measured_by
def skill():
    with torch.no_grad():
        error = ((model(grid) - solution(grid)) ** 2).mean() / solution(grid).var()
    return 1 - error.item()
