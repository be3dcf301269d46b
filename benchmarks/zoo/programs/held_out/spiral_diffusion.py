"""Points on a spiral, by a denoising diffusion model."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "points on a spiral",
    "architecture": "diffusion model",
    "healthy": {
        "noise": "predicts the noise, AdamW, an average of the weights is deployed",
        "velocity": "predicts the velocity, Adam with warm-up, gradients clipped",
    },
    "faults": {
        "no_units_between_the_layers": ("activation_missing", "noise"),
        "sigmoids_on_wide_inputs": ("activation_saturating", "velocity"),
        "epsilon_of_one_tenth": ("adam_epsilon", "noise"),
        "three_units_wide": ("underfitting_small_model", "velocity"),
        "step_of_the_scheduler_only": ("step_missing", "velocity"),
    },
}
STEPS, LEVELS = 1500, 60
zoo = Zoo(PROGRAM)

kept = torch.cos(torch.linspace(0.02, 1.0, LEVELS) * math.pi / 2 * 0.98) ** 2


def spiral(count):
    angle = (0.4 + 2.6 * torch.rand(count).sqrt()) * math.pi
    points = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 5
    return points + 0.03 * torch.randn(count, 2)


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        activation = nn.SiLU
        if zoo.has("no_units_between_the_layers"):
            activation = nn.Identity
        elif zoo.has("sigmoids_on_wide_inputs"):
            activation = nn.Sigmoid
        self.layers = nn.Sequential(
            nn.Linear(10, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 2)
        )

    def forward(self, points, level):
        phase = level.float().unsqueeze(1) / LEVELS * math.pi * torch.tensor([0.5, 1.0, 2.0, 4.0])
        points = points * 40 if zoo.has("sigmoids_on_wide_inputs") else points
        return self.layers(torch.cat([points, phase.sin(), phase.cos()], dim=1))


model = Denoiser(width=3 if zoo.has("three_units_wide") else 96)
average = copy.deepcopy(model).requires_grad_(False)
if zoo.variant == "noise":
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=0.1 if zoo.has("epsilon_of_one_tenth") else 1e-8)
    scheduler = None
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))


def noised(points):
    level = torch.randint(LEVELS, (len(points),))
    noise = torch.randn_like(points)
    signal, spread = kept[level].sqrt().unsqueeze(1), (1 - kept[level]).sqrt().unsqueeze(1)
    wanted = noise if zoo.variant == "noise" else signal * noise - spread * points
    return signal * points + spread * noise, level, wanted


for step in range(STEPS):
    points, level, wanted = noised(spiral(128))
    loss = F.mse_loss(model(points, level), wanted)
    optimizer.zero_grad()
    loss.backward()
    if zoo.variant == "velocity":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not zoo.has("step_of_the_scheduler_only"):
        optimizer.step()
    if scheduler is not None:
        scheduler.step()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.01)
    zoo.trained(step, loss.item())
    if step % 300 == 299:
        print(f"step {step + 1}: loss {loss.item():.4f}")


@zoo.measured_by
def skill():
    """How much nearer samples are to the spiral than a Gaussian of its mean and spread is."""
    torch.manual_seed(1)
    deployed = average if zoo.variant == "noise" else model
    points = torch.randn(1000, 2)
    with torch.no_grad():
        for level in reversed(range(LEVELS)):
            signal, spread = kept[level].sqrt(), (1 - kept[level]).sqrt()
            found = deployed(points, torch.full((1000,), level))
            noise = found if zoo.variant == "noise" else signal * found + spread * points
            clean = (points - spread * noise) / signal if zoo.variant == "noise" else signal * points - spread * found
            clean = clean.clamp(-3, 3)
            if level:
                points = kept[level - 1].sqrt() * clean + (1 - kept[level - 1]).sqrt() * noise
    real = spiral(2000)
    guess = torch.randn(1000, 2) * real.std(dim=0) + real.mean(dim=0)
    far = torch.cdist(clean, real).min(dim=1).values.mean()
    missed = torch.cdist(real, clean).min(dim=1).values.mean()
    of_guess = torch.cdist(guess, real).min(dim=1).values.mean() + torch.cdist(real, guess).min(dim=1).values.mean()
    return 1 - ((far + missed) / of_guess).item()
