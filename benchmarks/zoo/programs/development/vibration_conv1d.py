"""The frequency of a noisy vibration: regression by a one-dimensional CNN."""

import math

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "frequency of vibrations",
    "architecture": "1-D CNN for regression",
    "healthy": {
        "plain": "Adam, batch normalisation, batches of 32",
        "group": "AdamW with warm-up, group normalisation, batches of 4, noisy losses",
        "bad_batches": "Huber loss, SGD with momentum; one batch in fifty is of a broken sensor",
    },
    "faults": {
        "frequency_in_millihertz": ("targets_scaled", "plain"),
        "batches_of_one": ("normalization_batch_of_one", "plain"),
        "trained_in_evaluation_mode": ("normalization_mode", "plain"),
        "normal_weights": ("initialization_too_large", "group"),
        "targets_of_other_signals": ("labels_shuffled", "group"),
        "rate_of_1e_7": ("learning_rate_too_low", "bad_batches"),
    },
}
STEPS = 500
zoo = Zoo(PROGRAM)


def signals(count):
    frequency = 0.5 + 2 * torch.rand(count)
    time = torch.linspace(0, 4, 64)
    phase = 2 * math.pi * torch.rand(count, 1)
    loudness = 0.5 + torch.rand(count, 1)
    waves = loudness * torch.sin(2 * math.pi * frequency[:, None] * time + phase) + 0.3 * torch.randn(count, 64)
    return waves.unsqueeze(1), frequency - 1.5


x, y = signals(2000)
x_valid, y_valid = signals(400)
unit = 1.0
if zoo.has("frequency_in_millihertz"):
    unit = 1000.0
    y, y_valid = y * unit, y_valid * unit
if zoo.has("targets_of_other_signals"):
    y = y[torch.randperm(len(y))]


def block(before, after):
    normalization = {"plain": nn.BatchNorm1d, "group": lambda n: nn.GroupNorm(4, n), "bad_batches": nn.BatchNorm1d}
    return nn.Sequential(nn.Conv1d(before, after, 5, stride=2, padding=2), normalization[zoo.variant](after), nn.ReLU())


model = nn.Sequential(block(1, 16), block(16, 32), block(32, 32), nn.Flatten(), nn.Linear(256, 1))
if zoo.has("normal_weights"):
    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.Linear)):
            nn.init.normal_(layer.weight, std=3.0)
size = 32
scheduler = None
criterion = nn.HuberLoss() if zoo.variant == "bad_batches" else nn.MSELoss()
if zoo.variant == "plain":
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    size = 1 if zoo.has("batches_of_one") else 32
elif zoo.variant == "group":
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=50)
    size = 4
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7 if zoo.has("rate_of_1e_7") else 0.03, momentum=0.9)

for step in range(STEPS):
    model.train(not zoo.has("trained_in_evaluation_mode"))
    rows = torch.randint(len(x), (size,))
    batch, targets = x[rows], y[rows]
    if zoo.variant == "bad_batches" and step % 50 == 20:
        batch, targets = 3 * torch.randn_like(batch), targets * 4
    loss = criterion(model(batch).squeeze(1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        model.eval()
        with torch.no_grad():
            validation = criterion(model(x_valid).squeeze(1), y_valid).item()
        zoo.validated(step, validation)
        print(f"step={step + 1} loss={loss.item():.4f} val={validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        error = ((model(x_valid).squeeze(1) - y_valid) ** 2).mean().item()
    return 1 - error / y_valid.var().item()
