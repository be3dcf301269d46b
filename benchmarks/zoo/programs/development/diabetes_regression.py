"""Progression of diabetes from ten features: regression on a small table."""

import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "diabetes",
    "architecture": "MLP for regression",
    "healthy": {
        "plain": "Adam, squared error, targets of zero mean and unit variance",
        "huber": "RMSprop, Huber loss, weight decay",
        "linear": "a linear model by SGD, as a baseline",
    },
    "faults": {
        "targets_as_they_are": ("targets_scaled", "plain"),
        "targets_times_a_hundred": ("targets_scaled", "huber"),
        "relu_on_the_output": ("activation_misplaced", "plain"),
        "half_a_million_parameters": ("under_regularized", "huber"),
        "four_hundred_epochs_on_fifty_patients": ("overfitting", "plain"),
        "targets_of_other_patients": ("labels_shuffled", "linear"),
    },
}
zoo = Zoo(PROGRAM)

features, targets = load_diabetes(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(features * 21, targets, test_size=0.3, random_state=3)
if zoo.has("half_a_million_parameters") or zoo.has("four_hundred_epochs_on_fifty_patients"):
    x, y = x[:50], y[:50]
mean, std = y.mean(), y.std()
x, x_valid, y, y_valid = (torch.tensor(part, dtype=torch.float32) for part in (x, x_valid, y, y_valid))
if zoo.has("targets_times_a_hundred"):
    mean, std = 0.0, std / 100
if not zoo.has("targets_as_they_are"):
    y, y_valid = (y - mean) / std, (y_valid - mean) / std
if zoo.has("targets_of_other_patients"):
    y = y[torch.randperm(len(y))]

width = 700 if zoo.has("half_a_million_parameters") else 48
if zoo.variant == "linear":
    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
else:
    model = nn.Sequential(nn.Linear(10, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
    if zoo.has("relu_on_the_output"):
        model.append(nn.ReLU())
    if zoo.variant == "huber":
        decay = 0 if zoo.has("half_a_million_parameters") else 1e-2
        optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4, weight_decay=decay)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.HuberLoss() if zoo.variant == "huber" else nn.MSELoss()

epochs = 400 if len(x) == 50 else 40
step = 0
for epoch in range(epochs):
    model.train()
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = criterion(model(x[rows]).squeeze(-1), y[rows])
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    if epoch % (epochs // 10) == 0:
        model.eval()
        with torch.no_grad():
            validation = criterion(model(x_valid).squeeze(-1), y_valid).item()
        zoo.validated(step, validation)
        print(f"epoch {epoch}: {loss.item():.4f} {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        error = ((model(x_valid).squeeze(-1) - y_valid) ** 2).mean().item()
    return 1 - error / y_valid.var().item()
