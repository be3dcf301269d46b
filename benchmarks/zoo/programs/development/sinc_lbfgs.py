"""A curve through noisy points by a network of sines and tangents, with LBFGS and others."""

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "a curve",
    "architecture": "small smooth network",
    "healthy": {
        "lbfgs": "LBFGS with strong Wolfe line search on all points",
        "adam": "Adam, all points, long after convergence",
        "noisy": "SGD with batches of 4 and a decaying rate",
    },
    "faults": {
        "all_weights_alike": ("constant_initialization", "lbfgs"),
        "relu_on_the_output": ("activation_misplaced", "adam"),
        "softmax_between_layers": ("activation_misplaced", "noisy"),
        "rate_of_1e_7": ("learning_rate_too_low", "adam"),
        "points_in_a_large_unit": ("targets_scaled", "noisy"),
        "wide_on_twelve_points": ("under_regularized", "adam"),
    },
}
zoo = Zoo(PROGRAM)


def points(count):
    x = 6 * torch.rand(count, 1) - 3
    y = torch.sin(2 * x) / (0.5 + x.abs()) + 0.1 * torch.randn(count, 1)
    return x, (100.0 if zoo.has("points_in_a_large_unit") else 1.0) * y


class Sine(nn.Module):
    def forward(self, inputs):
        return torch.sin(inputs)


few = zoo.has("wide_on_twelve_points")
x, y = points(12 if few else 300)
x_valid, y_valid = points(200)
width = 400 if few else 24
model = nn.Sequential(nn.Linear(1, width), Sine(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
if few:
    nn.init.normal_(model[0].weight, std=8.0)
if zoo.has("all_weights_alike"):
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
if zoo.has("relu_on_the_output"):
    model.append(nn.ReLU())
if zoo.has("softmax_between_layers"):
    model[3] = nn.Softmax(dim=1)


def validate(step, loss):
    with torch.no_grad():
        validation = nn.functional.mse_loss(model(x_valid), y_valid).item()
    zoo.validated(step, validation)
    print(f"{step}: {loss:.5f} {validation:.5f}")


if zoo.variant == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(100):
        loss = optimizer.step(closure)
        zoo.trained(step, loss.item())
        if step % 20 == 19:
            validate(step + 1, loss.item())
else:
    scheduler = None
    if zoo.variant == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-7 if zoo.has("rate_of_1e_7") else 1e-2)
        size, steps = len(x), 1500
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9985)
        size, steps = 4, 1500
    for step in range(steps):
        rows = torch.randperm(len(x))[:size]
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        zoo.trained(step, loss.item())
        if step % 250 == 249:
            validate(step + 1, loss.item())


@zoo.measured_by
def skill():
    with torch.no_grad():
        return 1 - ((model(x_valid) - y_valid) ** 2).mean().item() / y_valid.var().item()
