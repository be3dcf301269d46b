"""Digits five to nine by a network that has learned nought to four: a backbone and a new head."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "other digits",
    "architecture": "pretrained backbone with a new head",
    "healthy": {
        "frozen": "Adam for the head alone, backbone in evaluation mode",
        "fine_tuned": "AdamW, a hundredth of the rate for the backbone, weight decay",
    },
    "faults": {
        "all_of_it_on_forty_images": ("overfitting", "fine_tuned"),
        "large_head_on_thirty_images": ("under_regularized", "frozen"),
        "head_of_zeros_and_rate_of_1e_7": ("learning_rate_too_low", "frozen"),
        "mostly_sevens": ("class_imbalance", "fine_tuned"),
        "labels_of_a_shuffled_copy": ("labels_shuffled", "fine_tuned"),
    },
}
zoo = Zoo(PROGRAM)

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 8 - 0.6, torch.tensor(labels)
images = images.view(-1, 1, 8, 8)
old = labels < 5

backbone = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
)


def epoch(model, optimizer, x, y, size, step):
    for rows in torch.randperm(len(x)).split(size):
        if len(rows) < 2:
            continue
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    return step


pretrained = nn.Sequential(backbone, nn.Linear(128, 5))
optimizer = torch.optim.Adam(pretrained.parameters(), lr=3e-3)
step = 0
for _ in range(4):
    step = epoch(pretrained, optimizer, images[old], labels[old], 32, step)
print(f"pretrained in {step} steps")

x, y = images[~old], labels[~old] - 5
order = torch.randperm(len(x))
x, y, x_valid, y_valid = x[order[300:]], y[order[300:]], x[order[:300]], y[order[:300]]
if zoo.has("all_of_it_on_forty_images") or zoo.has("large_head_on_thirty_images"):
    few = 40 if zoo.variant == "fine_tuned" else 30
    x, y = x[:few], y[:few]
if zoo.has("mostly_sevens"):
    kept = (y == 2) | (torch.rand(len(y)) < 0.02)
    x, y = x[kept], y[kept]
if zoo.has("labels_of_a_shuffled_copy"):
    y = y[torch.randperm(len(y))]

head = nn.Linear(128, 5)
if zoo.has("large_head_on_thirty_images"):
    head = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 5))
model = nn.Sequential(backbone, head)
if zoo.variant == "frozen":
    backbone.requires_grad_(False)
    rate = 1e-7 if zoo.has("head_of_zeros_and_rate_of_1e_7") else 3e-3
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
else:
    rate = 3e-5 if not zoo.has("all_of_it_on_forty_images") else 3e-3
    groups = [{"params": backbone.parameters(), "lr": rate}, {"params": head.parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0 if zoo.has("all_of_it_on_forty_images") else 0.05)
if zoo.has("head_of_zeros_and_rate_of_1e_7"):
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)

for number in range(60 if len(x) < 50 else 10):
    model.train()
    if zoo.variant == "frozen":
        backbone.eval()
    step = epoch(model, optimizer, x, y, 16, step)
    model.eval()
    with torch.no_grad():
        validation = F.cross_entropy(model(x_valid), y_valid).item()
    zoo.validated(step, validation)
    print(f"epoch {number + 1}: validation {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        return above_chance((model(x_valid).argmax(dim=1) == y_valid).float().mean().item(), 0.2)
