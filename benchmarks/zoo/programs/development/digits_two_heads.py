"""Which digit an image shows and how much ink it has: one trunk, two heads, two losses."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits and their ink",
    "architecture": "network with two heads",
    "healthy": {
        "weighted": "Adam, fixed weights of the two losses",
        "uncertainty": "SGD with momentum, learned weights; the loss becomes negative",
    },
    "faults": {
        "trunk_detached": ("graph_detached", "weighted"),
        "ink_as_it_is": ("targets_scaled", "weighted"),
        "summed_losses": ("loss_summed", "uncertainty"),
        "loss_times_two_to_the_28": ("fp16_overflow", "weighted"),
        "class_numbers_by_squared_error": ("wrong_loss", "weighted"),
        "decay_per_batch": ("scheduler_per_batch", "weighted"),
    },
}
zoo = Zoo(PROGRAM)

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
ink = images.sum(dim=1)
if not zoo.has("ink_as_it_is"):
    ink = (ink - ink.mean()) / ink.std()
images = (images - images.mean()) / images.std()
order = torch.randperm(len(images))
train, valid = order[360:], order[:360]


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 8), nn.SiLU())
        self.digit = nn.Linear(8, 1 if zoo.has("class_numbers_by_squared_error") else 10)
        self.ink = nn.Linear(8, 1)
        self.log_variances = nn.Parameter(torch.zeros(2), requires_grad=zoo.variant == "uncertainty")

    def forward(self, images):
        features = self.trunk(images)
        if zoo.has("trunk_detached"):
            features = features.detach()
        return self.digit(features).float(), self.ink(features).float().squeeze(1)


model = TwoHeads()
reduction = "sum" if zoo.has("summed_losses") else "mean"


def objective(rows):
    digit, amount = model(images[rows])
    if zoo.has("class_numbers_by_squared_error"):
        of_digit = F.mse_loss(digit.squeeze(1), labels[rows].float())
    else:
        of_digit = F.cross_entropy(digit, labels[rows], reduction=reduction)
    of_ink = F.mse_loss(amount, ink[rows], reduction=reduction)
    if zoo.variant == "weighted":
        return of_digit + 0.5 * of_ink
    weights = (-model.log_variances).exp()
    return weights[0] * of_digit + weights[1] * of_ink + model.log_variances.sum()


if zoo.variant == "weighted":
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
else:
    layers = [*model.trunk.parameters(), *model.digit.parameters(), *model.ink.parameters()]
    groups = [{"params": layers}, {"params": [model.log_variances], "lr": 1e-3}]
    optimizer = torch.optim.SGD(groups, lr=0.03, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)

step = 0
for epoch in range(12):
    model.train()
    for rows in train[torch.randperm(len(train))].split(32):
        with torch.autocast("cpu", dtype=torch.float16, enabled=zoo.has("loss_times_two_to_the_28")):
            loss = objective(rows)
        optimizer.zero_grad()
        if zoo.has("loss_times_two_to_the_28"):
            (loss * 2.0**28).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= 2.0**28
        else:
            loss.backward()
        if zoo.variant == "uncertainty" and not zoo.has("summed_losses"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if zoo.has("decay_per_batch"):
            scheduler.step()
        zoo.trained(step, loss.item())
        step += 1
    if not zoo.has("decay_per_batch"):
        scheduler.step()
    model.eval()
    with torch.no_grad():
        validation = objective(valid).item()
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1} loss {loss.item():.4f} validation {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        digit, _ = model(images[valid])
    found = digit.squeeze(1).round() if zoo.has("class_numbers_by_squared_error") else digit.argmax(dim=1)
    return above_chance((found == labels[valid]).float().mean().item(), 0.1)
