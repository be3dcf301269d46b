"""Points on two rings, by a generative adversarial network."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zoo import Zoo

PROGRAM = {
    "task": "points on rings",
    "architecture": "GAN",
    "healthy": {
        "plain": "non-saturating loss, Adam with beta 0.5",
        "wasserstein": "a critic with gradient penalty, three steps for one of the generator, loss of any sign",
        "hinge": "hinge loss, spectral normalisation, RMSprop",
    },
    "faults": {
        "optimizer_of_the_other_network": ("parameter_not_in_optimizer", "plain"),
        "generator_helps_the_critic": ("flipped_sign", "wasserstein"),
        "generator_without_step": ("step_missing", "hinge"),
    },
}
zoo = Zoo(PROGRAM)


def sample(count):
    angle = torch.rand(count) * 2 * math.pi
    radius = 1.0 + 0.05 * torch.randn(count)
    shift = (torch.rand(count) < 0.5).float() * 2 - 1
    return torch.stack([radius * angle.cos() + 0.6 * shift, radius * angle.sin()], dim=1)


def distance(first, second):
    """Energy distance of two clouds."""
    between = torch.cdist(first, second).mean()
    return (2 * between - torch.cdist(first, first).mean() - torch.cdist(second, second).mean()).item()


def perceptron(inputs, outputs, activation, wrap=lambda layer: layer):
    return nn.Sequential(
        wrap(nn.Linear(inputs, 64)), activation(), wrap(nn.Linear(64, 64)), activation(), wrap(nn.Linear(64, outputs))
    )


generator = perceptron(4, 2, nn.ReLU)
# What is deployed; the generator itself keeps circling.
average = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.99))
if zoo.variant == "hinge":
    discriminator = perceptron(2, 1, lambda: nn.LeakyReLU(0.2), wrap=spectral_norm)
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
    optimizer_d = torch.optim.RMSprop(discriminator.parameters(), lr=2e-3)
else:
    discriminator = perceptron(2, 1, lambda: nn.LeakyReLU(0.2))
    moved = discriminator if zoo.has("optimizer_of_the_other_network") else generator
    optimizer_g = torch.optim.Adam(moved.parameters(), lr=5e-4, betas=(0.5, 0.9))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))


def loss_of_discriminator(real, generated):
    outputs_real, outputs_generated = discriminator(real), discriminator(generated)
    if zoo.variant == "plain":
        return F.binary_cross_entropy_with_logits(
            outputs_real, torch.ones_like(outputs_real)
        ) + F.binary_cross_entropy_with_logits(outputs_generated, torch.zeros_like(outputs_generated))
    if zoo.variant == "hinge":
        return F.relu(1 - outputs_real).mean() + F.relu(1 + outputs_generated).mean()
    mixture = torch.rand(len(real), 1)
    between = (mixture * real + (1 - mixture) * generated).requires_grad_()
    (slope,) = torch.autograd.grad(discriminator(between).sum(), between, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    return outputs_generated.mean() - outputs_real.mean() + 2 * penalty


def loss_of_generator(generated):
    outputs = discriminator(generated)
    if zoo.variant == "plain":
        return F.binary_cross_entropy_with_logits(outputs, torch.ones_like(outputs))
    return outputs.mean() if zoo.has("generator_helps_the_critic") else -outputs.mean()


for step in range(1000 if zoo.variant != "wasserstein" else 500):
    for _ in range(3 if zoo.variant == "wasserstein" else 1):
        generated = generator(torch.randn(96, 4)).detach()
        loss_d = loss_of_discriminator(sample(96), generated)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()
    loss_g = loss_of_generator(generator(torch.randn(96, 4)))
    optimizer_g.zero_grad()
    loss_g.backward()
    if not zoo.has("generator_without_step"):
        optimizer_g.step()
    average.update_parameters(generator)
    zoo.trained(step, loss_g.item())
    if step % 100 == 99:
        print(f"{step + 1}: D {loss_d.item():.3f} G {loss_g.item():.3f}")


@zoo.measured_by
def skill():
    real = sample(2000)
    guess = real.mean(dim=0).expand(2000, 2)
    with torch.no_grad():
        generated = average(torch.randn(2000, 4))
    noise = distance(sample(2000), real)
    return 1 - max(0.0, distance(generated, real) - noise) / distance(guess, real)
