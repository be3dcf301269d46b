"""The hour that the hand of a clock shows in a noisy image: a residual CNN without normalisation."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "clocks",
    "architecture": "residual CNN without normalisation",
    "healthy": {
        "plain": "SGD with momentum, cosine decay, clipping at 1",
        "autocast": "AdamW, bfloat16 autocast, label smoothing",
        "frozen_stem": "Adam, the first convolution is frozen on purpose",
    },
    "faults": {
        "turned_at_random": ("augmentation_destroys", "autocast"),
        "noise_louder_than_the_hand": ("augmentation_destroys", "plain"),
        "sixteen_clocks_again_and_again": ("overfitting", "frozen_stem"),
        "weights_of_1e_4": ("initialization_too_small", "plain"),
        "one_value_for_all_kernels": ("constant_initialization", "autocast"),
        "summed_over_clocks": ("loss_summed", "plain"),
    },
}
STEPS = 240
HOURS = 8
zoo = Zoo(PROGRAM)


def clocks(count):
    hours = torch.randint(HOURS, (count,))
    angle = (hours + 0.5 * torch.rand(count) - 0.25) * 2 * math.pi / HOURS
    grid = torch.linspace(-1, 1, 12)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    along = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
    across = -x * angle.sin()[:, None, None] + y * angle.cos()[:, None, None]
    images = ((along > 0) & (along < 0.9) & (across.abs() < 0.15)).float()
    return (images + 0.3 * torch.randn_like(images) - 0.06).unsqueeze(1), hours


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.full((1,), 0.2))

    def forward(self, images):
        return F.relu(images + self.scale * self.second(F.relu(self.first(images))))


model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    nn.ReLU(),
    Residual(12),
    nn.Conv2d(12, 24, 4, stride=2, padding=1),
    nn.ReLU(),
    Residual(24),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(24 * 9, HOURS),
)
for parameter in model.parameters():
    if parameter.dim() > 1 and zoo.has("weights_of_1e_4"):
        nn.init.normal_(parameter, std=1e-4)
    if parameter.dim() > 1 and zoo.has("one_value_for_all_kernels"):
        nn.init.constant_(parameter, 0.02)
if zoo.variant == "frozen_stem":
    model[0].requires_grad_(False)

if zoo.variant == "plain":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
elif zoo.variant == "autocast":
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
else:
    optimizer = torch.optim.Adam((each for each in model.parameters() if each.requires_grad), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
smoothing = 0.1 if zoo.variant == "autocast" else 0.0
reduction = "sum" if zoo.has("summed_over_clocks") else "mean"


def augmented(images):
    if zoo.has("turned_at_random"):
        turns = torch.randint(4, (len(images),)).tolist()
        images = torch.stack([torch.rot90(each, turn, (-2, -1)) for each, turn in zip(images, turns)])
        return images.flip(-1) if torch.rand(()) < 0.5 else images
    return images + (5.0 if zoo.has("noise_louder_than_the_hand") else 0.05) * torch.randn_like(images)


x, y = clocks(2000)
x_valid, y_valid = clocks(300)
if zoo.has("sixteen_clocks_again_and_again"):
    x, y = x[:16], y[:16]

for step in range(STEPS):
    rows = torch.randint(len(x), (32,))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=zoo.variant == "autocast"):
        logits = model(augmented(x[rows]))
    loss = F.cross_entropy(logits.float(), y[rows], label_smoothing=smoothing, reduction=reduction)
    optimizer.zero_grad()
    loss.backward()
    if zoo.variant == "plain" and not zoo.has("summed_over_clocks"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    zoo.trained(step, loss.item())
    if step % 30 == 29:
        model.eval()
        with torch.no_grad():
            validation = F.cross_entropy(model(x_valid), y_valid).item()
        model.train()
        zoo.validated(step, validation)
        print(f"[{step + 1}/{STEPS}] loss {loss.item():.3f} val {validation:.3f}")


@zoo.measured_by
def skill():
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=1) == y_valid).float().mean().item()
    return above_chance(right, 1 / HOURS)
