"""Which pixels belong to cells in microscope images, by a small U-Net."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "cells in microscope images",
    "architecture": "U-Net",
    "healthy": {
        "plain": "Adam, binary cross-entropy, a batch normalisation written out",
        "dice": "SGD with momentum, dice loss after a sigmoid, no normalisation layers",
    },
    "faults": {
        "softmax_over_one_channel": ("softmax_on_one_unit", "dice"),
        "running_mean_into_a_local_name": ("normalization_never_updated", "plain"),
        "bytes_into_the_network": ("raw_pixels", "dice"),
        "sorted_by_brightness": ("data_not_shuffled", "dice"),
    },
}
STEPS = 220
zoo = Zoo(PROGRAM)


def microscope(count):
    """Bytes of 24 x 24 pixels and masks: cells are brighter than the rest, and so is dirt, which is small."""
    down, across = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    mask = torch.zeros(count, 24, 24)
    images = 70 + 25 * torch.rand(count, 1, 1) + 2 * torch.randn(count, 1, 1) * (across - 12) / 3
    for _ in range(3):
        y, x = torch.rand(2, count, 1, 1) * 24
        tall, wide = torch.rand(2, count, 1, 1) * 3 + 2.5
        cell = (((down - y) / tall) ** 2 + ((across - x) / wide) ** 2 < 1).float()
        mask = torch.maximum(mask, cell)
    for _ in range(6):
        y, x = torch.rand(2, count, 1, 1) * 24
        images = images + 70 * ((down - y) ** 2 + (across - x) ** 2 < 1.5)
    images = images + mask * 50 + 18 * torch.randn(count, 24, 24)
    return images.clamp(0, 255).to(torch.uint8).unsqueeze(1), mask.unsqueeze(1)


def prepare(images):
    return images.float() if zoo.has("bytes_into_the_network") else (images.float() - 100) / 40


class Normalization(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, images):
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = images.mean(dim=(0, 2, 3)), images.var(dim=(0, 2, 3), unbiased=False)
            running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
            running_var = 0.9 * self.running_var + 0.1 * var.detach()
            if not zoo.has("running_mean_into_a_local_name"):
                self.running_mean.copy_(running_mean)
                self.running_var.copy_(running_var)
        scaled = (images - mean[:, None, None]) * (var[:, None, None] + 1e-5).rsqrt()
        return scaled * self.weight[:, None, None] + self.bias[:, None, None]


def convolution(inputs, outputs):
    normalization = Normalization(outputs) if zoo.variant == "plain" else nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), normalization, nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.bottom = convolution(1, 8), convolution(8, 16), convolution(16, 24)
        self.up2, self.up1 = convolution(24 + 16, 16), convolution(16 + 8, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, images):
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        hidden = self.up2(torch.cat([F.interpolate(bottom, scale_factor=2), second], dim=1))
        return self.out(self.up1(torch.cat([F.interpolate(hidden, scale_factor=2), first], dim=1)))


def probabilities(outputs):
    return outputs.softmax(dim=1) if zoo.has("softmax_over_one_channel") else outputs.sigmoid()


def criterion(outputs, mask):
    if zoo.variant == "plain":
        return F.binary_cross_entropy_with_logits(outputs, mask)
    found = probabilities(outputs)
    return 1 - (2 * (found * mask).sum() + 1) / (found.sum() + mask.sum() + 1)


images, masks = microscope(1200)
if zoo.has("sorted_by_brightness"):
    order = images.float().mean(dim=(1, 2, 3)).argsort()
    images, masks = images[order], masks[order]
images_valid, masks_valid = microscope(200)
x, x_valid = prepare(images), prepare(images_valid)
model = UNet()
if zoo.variant == "plain":
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for step in range(STEPS):
    model.train()
    rows = torch.randint(len(x), (16,))
    if zoo.has("sorted_by_brightness"):
        rows = torch.arange(step * 16, step * 16 + 16) % len(x)
    loss = criterion(model(x[rows]), masks[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    zoo.trained(step, loss.item())
    if step % 55 == 54:
        model.eval()
        with torch.no_grad():
            validation = criterion(model(x_valid), masks_valid).item()
        zoo.validated(step, validation)
        print(f"iteration {step + 1}: loss {loss.item():.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    """Overlap with the true cells, above what marking everything has."""
    model.eval()
    with torch.no_grad():
        found = probabilities(model(x_valid)) > 0.5
    true = masks_valid > 0.5
    overlap = ((found & true).sum() / (found | true).sum()).item()
    chance = true.float().mean().item()
    return (overlap - chance) / (1 - chance)
