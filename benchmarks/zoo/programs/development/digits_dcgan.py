"""Images of handwritten digits from noise: a small DCGAN."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "digits from noise",
    "architecture": "DCGAN",
    "healthy": {
        "plain": "two Adams with beta_1 0.5, non-saturating loss, one-sided label smoothing",
        "least_squares": "RMSprop, least-squares losses",
    },
    "faults": {
        "images_detached_in_both_updates": ("graph_detached", "plain"),
        "relu_on_the_images": ("activation_misplaced", "plain"),
        "generator_rate_of_1e_7": ("learning_rate_too_low", "plain"),
        "normal_weights": ("initialization_too_large", "least_squares"),
    },
}
STEPS = 500
zoo = Zoo(PROGRAM)

real = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1

generator = nn.Sequential(
    nn.Linear(16, 32 * 4),
    nn.Unflatten(1, (32, 2, 2)),
    nn.ReLU(),
    nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
    nn.ReLU(),
    nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
    nn.ReLU() if zoo.has("relu_on_the_images") else nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(1, 16, 4, stride=2, padding=1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(16, 32, 4, stride=2, padding=1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(128, 1),
)
if zoo.has("normal_weights"):
    for parameter in [*generator.parameters(), *discriminator.parameters()]:
        nn.init.normal_(parameter)

if zoo.variant == "plain":
    criterion, good = nn.BCEWithLogitsLoss(), 0.9
    rate = 1e-7 if zoo.has("generator_rate_of_1e_7") else 1e-3
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=rate, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
else:
    criterion, good = nn.MSELoss(), 1.0
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    optimizer_d = torch.optim.RMSprop(discriminator.parameters(), lr=5e-4)

for step in range(STEPS):
    images = real[torch.randint(len(real), (32,))]
    ones, zeros = torch.full((32, 1), good), torch.zeros(32, 1)
    made = generator(torch.randn(32, 16))
    if zoo.has("images_detached_in_both_updates"):
        made = made.detach()

    optimizer_d.zero_grad()
    loss_d = criterion(discriminator(images), ones) + criterion(discriminator(made.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(made), torch.ones(32, 1))
    loss_g.backward()
    optimizer_g.step()
    zoo.trained(step, loss_g.item())
    if step % 50 == 49:
        print(f"{step + 1}: D {loss_d.item():.3f}, G {loss_g.item():.3f}")


@zoo.measured_by
def skill():
    with torch.no_grad():
        made = generator(torch.randn(1000, 16)).flatten(1)
    images = real.flatten(1)
    # How far means and spreads of the pixels are off, beside those of a grey image.
    off = (made.mean(dim=0) - images.mean(dim=0)).square().sum() + (made.std(dim=0) - images.std(dim=0)).square().sum()
    return 1 - (off / (images.mean(dim=0).square().sum() + images.std(dim=0).square().sum())).item()
