"""Electricity load of several districts, six hours ahead, by a network over the last hours."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from zoo import Zoo

PROGRAM = {
    "task": "forecast of a series",
    "architecture": "GRU, LSTM or convolutions over windows",
    "healthy": {
        "gru": "Adam, batches of 32",
        "lstm": "RMSprop, two layers with dropout, absolute error",
        "small_batches": "convolutions over time, SGD with momentum, noisy batches of eight windows",
    },
    "faults": {
        "megawatts_as_they_are": ("inputs_not_normalized", "gru"),
        "one_hidden_unit": ("underfitting_small_model", "gru"),
        "districts_one_after_the_other": ("data_not_shuffled", "small_batches"),
        "no_zero_grad": ("zero_grad_missing", "lstm"),
    },
}
WINDOW, AHEAD, HOURS = 30, 6, 420
zoo = Zoo(PROGRAM)


def load(district, start):
    """Hourly load: a daily and a half-daily cycle, a slow one, weather, and noise; each district has a mixture."""
    hours = torch.arange(HOURS) + start
    shape = [0.2 + 0.9 * math.sin(district * 1.7) ** 2, 0.9 * math.cos(district * 1.1) ** 2, 0.3]
    lag = district * 1.3
    periods = (24, 12 - district, 90)
    cycles = sum(
        weight * torch.sin(2 * math.pi * hours / period + lag) for weight, period in zip(shape, periods, strict=True)
    )
    weather = torch.randn(HOURS).cumsum(0) * 0.02
    return 4200 + 600 * (cycles + weather + 0.12 * torch.randn(HOURS))


def windows(start):
    """Windows in the order of districts and hours, with the load that follows each by AHEAD hours."""
    inputs, targets = [], []
    for district in range(6):
        series = load(district, start)
        cuts = series.unfold(0, WINDOW + AHEAD, 1)
        inputs.append(cuts[:, :WINDOW])
        targets.append(cuts[:, -1])
    return torch.cat(inputs).unsqueeze(-1), torch.cat(targets)


x, y = windows(start=0)
x_valid, y_valid = windows(start=5000)
mean, std = x.mean(), x.std()
y, y_valid = (y - mean) / std, (y_valid - mean) / std
if not zoo.has("megawatts_as_they_are"):
    x, x_valid = (x - mean) / std, (x_valid - mean) / std


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        if zoo.variant == "lstm":
            self.recurrent = nn.LSTM(1, hidden, num_layers=2, dropout=0.1, batch_first=True)
        else:
            self.recurrent = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, series):
        states, _ = self.recurrent(series)
        return self.head(states[:, -1]).squeeze(-1)


if zoo.variant == "small_batches":
    model = nn.Sequential(
        nn.Unflatten(1, (1, WINDOW)),
        nn.Flatten(2),
        nn.Conv1d(1, 12, 5),
        nn.ReLU(),
        nn.Conv1d(12, 12, 5, dilation=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 18, 1),
        nn.Flatten(0),
    )
else:
    model = Forecaster(hidden=1 if zoo.has("one_hidden_unit") else 24)
batch, epochs = 32, 5
if zoo.variant == "gru":
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
elif zoo.variant == "lstm":
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
    batch, epochs = 8, 6
criterion = nn.L1Loss() if zoo.variant == "lstm" else nn.MSELoss()
ordered = zoo.has("districts_one_after_the_other")
loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=not ordered)

step = 0
for epoch in range(epochs):
    model.train()
    for series, following in loader:
        if not zoo.has("no_zero_grad"):
            optimizer.zero_grad()
        loss = criterion(model(series), following)
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    model.eval()
    with torch.no_grad():
        validation = criterion(model(x_valid), y_valid).item()
    zoo.validated(step, validation)
    print(f"Epoch {epoch + 1}/{epochs} - loss: {loss.item():.4f} - val_loss: {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        error = ((model(x_valid) - y_valid) ** 2).mean() / y_valid.var()
    return 1 - error.item()
