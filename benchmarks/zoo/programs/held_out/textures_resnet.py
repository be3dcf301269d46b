"""Six textures in small colour images, by a residual network with batch normalisation."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "textures in colour images",
    "architecture": "ResNet with batch normalisation",
    "healthy": {
        "plain": "SGD with Nesterov momentum, weight decay, cosine decay",
        "warmup": "AdamW, linear warm-up, label smoothing, mirrored images",
        "accumulated": "Adam, four batches of eight images per update",
    },
    "faults": {
        "momentum_of_statistics_zero": ("normalization_never_updated", "plain"),
        "rate_of_one_half": ("learning_rate_too_high", "warmup"),
        "update_never_due": ("step_missing", "accumulated"),
        "plain_layers_only": ("too_deep", "plain"),
    },
}
STEPS = 220
zoo = Zoo(PROGRAM)


def textures(count):
    """Stripes of two directions, checks, waves, spots and noise, of any colour, frequency and phase."""
    labels = torch.randint(6, (count,))
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    period = torch.rand(count, 1, 1) * 3 + 4
    x, y = ((axis + torch.rand(count, 1, 1) * 8) * 2 * math.pi / period for axis in (across, down))
    kinds = torch.stack(
        [x.sin(), y.sin(), x.sin() * y.sin(), (x + y).sin(), (x.cos() + y.cos() - 1), torch.randn(count, 16, 16) * 0.7]
    )
    pattern = kinds[labels, torch.arange(count)].unsqueeze(1)
    images = 0.5 + 0.12 * torch.randn(count, 3, 1, 1) + 0.12 * torch.randn(count, 3, 1, 1) * pattern
    return (images + 0.08 * torch.randn(count, 3, 16, 16)).clamp(0, 1), labels


x, y = textures(2400)
x_valid, y_valid = textures(600)
mean, std = x.mean(dim=(0, 2, 3), keepdim=True), x.std(dim=(0, 2, 3), keepdim=True)
x, x_valid = (x - mean) / std, (x_valid - mean) / std


def normalization(channels):
    if zoo.has("plain_layers_only"):
        return nn.Identity()
    return nn.BatchNorm2d(channels, momentum=0.0 if zoo.has("momentum_of_statistics_zero") else 0.1)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = normalization(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = normalization(channels)

    def forward(self, images):
        hidden = F.relu(self.first_norm(self.first(images)))
        hidden = self.second_norm(self.second(hidden))
        return F.relu(hidden) if zoo.has("plain_layers_only") else F.relu(hidden + images)


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1),
    normalization(16),
    nn.ReLU(),
    *[Block(16) for _ in range(6)],
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 6),
)
if zoo.variant == "plain":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
elif zoo.variant == "warmup":
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5 if zoo.has("rate_of_one_half") else 3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=50)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = None
parts = 4 if zoo.variant == "accumulated" else 1
due = 4 if zoo.has("update_never_due") else 3
smoothing = 0.1 if zoo.variant == "warmup" else 0.0

for step in range(STEPS * parts):
    model.train()
    rows = torch.randint(len(x), (32 // parts,))
    images = x[rows]
    if zoo.variant == "warmup" and torch.rand(()) < 0.5:
        images = images.flip(-1)
    loss = F.cross_entropy(model(images), y[rows], label_smoothing=smoothing)
    (loss / parts).backward()
    if parts == 1 or step % parts == due:
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    zoo.trained(step, loss.item())
    if step % (55 * parts) == 55 * parts - 1:
        model.eval()
        with torch.no_grad():
            validation = F.cross_entropy(model(x_valid), y_valid).item()
        zoo.validated(step, validation)
        print(f"{step + 1:5d}  training {loss.item():.4f}  validation {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=1) == y_valid).float().mean().item()
    return above_chance(right, 1 / 6)
