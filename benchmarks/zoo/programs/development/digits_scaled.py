"""Handwritten digits in half precision with a gradient scaler, micro-batches, and averaged weights."""

import copy

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "MLP in float16",
    "healthy": {
        "scaled": "SGD with momentum, float16 autocast, gradient scaler, clipping at 1",
        "accumulated": "SGD with momentum, eight micro-batches per update",
        "averaged": "SGD with momentum, evaluated with an exponential moving average of the weights",
    },
    "faults": {
        "clipped_before_unscaling": ("clipped_while_scaled", "scaled"),
        "clipped_at_a_tenth_before_unscaling": ("clipped_while_scaled", "scaled"),
        "eight_losses_added": ("accumulation_not_divided", "accumulated"),
        "average_never_updated": ("average_never_updated", "averaged"),
        "average_with_the_wrong_decay": ("average_never_updated", "averaged"),
    },
}
STEPS = 300
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(inputs, labels, test_size=0.25, random_state=0)
mean, std = x.mean(), x.std()
x, x_valid = (torch.tensor((part - mean) / std, dtype=torch.float32) for part in (x, x_valid))
y, y_valid = torch.tensor(y), torch.tensor(y_valid)

model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))
averaged = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25 if zoo.variant == "accumulated" else 0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", enabled=zoo.variant == "scaled")
micro = 8 if zoo.variant == "accumulated" else 1
decay = 1 - 1e-6 if zoo.has("average_with_the_wrong_decay") else 0.97
limit = 0.1 if zoo.has("clipped_at_a_tenth_before_unscaling") else 1.0
used = averaged if zoo.variant == "averaged" else model

for step in range(STEPS):
    model.train()
    optimizer.zero_grad()
    for _ in range(micro):
        batch = torch.randint(len(x), (64 // micro,))
        with torch.autocast("cpu", dtype=torch.float16, enabled=zoo.variant == "scaled"):
            loss = F.cross_entropy(model(x[batch]), y[batch])
        scaler.scale(loss if zoo.has("eight_losses_added") else loss / micro).backward()
    if zoo.variant == "scaled":
        if not zoo.fault:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()
    if zoo.variant == "averaged" and not zoo.has("average_never_updated"):
        with torch.no_grad():
            for old, new in zip(averaged.parameters(), model.parameters()):
                old.lerp_(new, 1 - decay)
    zoo.trained(step, loss.item())
    if step % 50 == 49:
        used.eval()
        with torch.no_grad():
            validation = F.cross_entropy(used(x_valid), y_valid)
        zoo.validated(step, validation.item())
        print(f"step {step + 1}: training loss {loss.item():.4f}, validation loss {validation.item():.4f}")


@zoo.measured_by
def skill():
    used.eval()
    with torch.no_grad():
        right = (used(x_valid).argmax(dim=-1) == y_valid).float().mean().item()
    return above_chance(right, 0.1)
