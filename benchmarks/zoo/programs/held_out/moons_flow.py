"""The density of two moons, by a normalising flow."""

import math

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "density of two moons",
    "architecture": "normalising flow",
    "healthy": {
        "coupling": "affine couplings, Adam, cosine decay; the loss turns negative",
        "small_batches": "affine couplings, RMSprop, noisy batches of 32",
        "clipped": "affine couplings, SGD with momentum, gradients clipped",
    },
    "faults": {
        "likelihood_minimised": ("flipped_sign", "coupling"),
        "gradients_added_up": ("zero_grad_missing", "small_batches"),
        "one_coupling_of_two_units": ("underfitting_small_model", "coupling"),
        "first_batch_only": ("constant_batch", "coupling"),
        "couplings_frozen": ("frozen_layer", "clipped"),
    },
}
STEPS = 1000
zoo = Zoo(PROGRAM)


def moons(count):
    angle = torch.rand(count) * math.pi
    upper = (torch.rand(count) < 0.5).float() * 2 - 1
    points = torch.stack([upper * angle.cos() - 0.5 * upper, upper * angle.sin() - 0.25 * upper], dim=1)
    return 0.7 * points + 0.05 * torch.randn(count, 2)


class Coupling(nn.Module):
    def __init__(self, first, hidden):
        super().__init__()
        self.first = first
        self.layers = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
        )

    def forward(self, points):
        kept, changed = points[:, self.first : self.first + 1], points[:, 1 - self.first : 2 - self.first]
        scale, shift = self.layers(kept).chunk(2, dim=1)
        scale = scale.tanh() * 1.5
        changed = changed * scale.exp() + shift
        parts = (kept, changed) if self.first == 0 else (changed, kept)
        return torch.cat(parts, dim=1), scale.squeeze(1)


class Flow(nn.Module):
    def __init__(self, couplings, hidden):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(index % 2, hidden) for index in range(couplings))
        self.scale = nn.Parameter(torch.zeros(2))
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, points):
        """Log-density of points."""
        volume = torch.zeros(len(points))
        for coupling in self.couplings:
            points, grown = coupling(points)
            volume = volume + grown
        points = points * self.scale.exp() + self.shift
        base = -0.5 * (points**2).sum(dim=1) - math.log(2 * math.pi)
        return base + volume + self.scale.sum()


flow = Flow(1, 2) if zoo.has("one_coupling_of_two_units") else Flow(6, 24)
if zoo.has("couplings_frozen"):
    for parameter in flow.couplings.parameters():
        parameter.requires_grad = False
trainable = [parameter for parameter in flow.parameters() if parameter.requires_grad]
if zoo.variant == "coupling":
    optimizer = torch.optim.Adam(trainable, lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
elif zoo.variant == "small_batches":
    optimizer = torch.optim.RMSprop(trainable, lr=5e-4)
    scheduler = None
else:
    optimizer = torch.optim.SGD(trainable, lr=0.03, momentum=0.9)
    scheduler = None

x, x_valid = moons(20000), moons(1000)
size = 32 if zoo.variant == "small_batches" else 96
first = x[:size]

for step in range(STEPS):
    batch = first if zoo.has("first_batch_only") else x[torch.randint(len(x), (size,))]
    likelihood = flow(batch).mean()
    loss = likelihood if zoo.has("likelihood_minimised") else -likelihood
    if not zoo.has("gradients_added_up"):
        optimizer.zero_grad()
    loss.backward()
    if zoo.variant == "clipped":
        nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        with torch.no_grad():
            validation = -flow(x_valid).mean().item()
        zoo.validated(step, validation)
        print(f"{step + 1:4d} nll {loss.item():.4f} valid {validation:.4f}")


@zoo.measured_by
def skill():
    """Share of the uncertainty of a Gaussian of equal covariance that the flow has removed."""
    test = moons(4000)
    gaussian = torch.distributions.MultivariateNormal(x.mean(dim=0), x.T.cov())
    with torch.no_grad():
        gained = (flow(test) - gaussian.log_prob(test)).mean().item()
    return 1 - math.exp(-max(gained, -3.0))
