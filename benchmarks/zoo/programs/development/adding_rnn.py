"""The sum of two marked numbers of a sequence, by a recurrent network of rectifiers that starts as the identity."""

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "adding problem",
    "architecture": "simple recurrent network",
    "healthy": {
        "relu": "RMSprop, recurrence starts as the identity, clipping at 1",
        "gru": "Adam, a GRU, squared error",
    },
    "faults": {
        "no_clipping_on_long_rows": ("recurrent_without_clipping", "relu"),
        "sums_in_thousandths": ("targets_scaled", "gru"),
        "all_weights_alike": ("constant_initialization", "gru"),
        "normal_weights": ("initialization_too_large", "relu"),
    },
}
STEPS = 400
zoo = Zoo(PROGRAM)
length = 80 if zoo.has("no_clipping_on_long_rows") else 16
unit = 1000.0 if zoo.has("sums_in_thousandths") else 1.0


def batch(size):
    numbers = torch.rand(size, length) - 0.5
    first = torch.randint(length // 2, (size,))
    second = torch.randint(length // 2, length, (size,))
    marks = torch.zeros(size, length)
    rows = torch.arange(size)
    marks[rows, first] = marks[rows, second] = 1.0
    sums = (numbers * marks).sum(dim=1)
    return torch.stack([numbers, marks], dim=2), unit * sums


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        if zoo.variant == "gru":
            self.cell = nn.GRU(2, 48, batch_first=True)
        else:
            self.cell = nn.RNN(2, 48, nonlinearity="relu", batch_first=True)
            nn.init.eye_(self.cell.weight_hh_l0)
            nn.init.normal_(self.cell.weight_ih_l0, std=0.1)
        self.head = nn.Linear(48, 1)

    def forward(self, rows):
        return self.head(self.cell(rows)[0][:, -1]).squeeze(1)


model = Adder()
if zoo.has("all_weights_alike"):
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.05)
if zoo.has("normal_weights"):
    for parameter in model.parameters():
        nn.init.normal_(parameter)
if zoo.variant == "gru":
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
else:
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2 if zoo.has("no_clipping_on_long_rows") else 1e-3)

for step in range(STEPS):
    rows, sums = batch(32)
    optimizer.zero_grad()
    loss = ((model(rows) - sums) ** 2).mean()
    loss.backward()
    if zoo.variant == "relu" and not zoo.has("no_clipping_on_long_rows"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    zoo.trained(step, loss.item())
    if step % 80 == 79:
        with torch.no_grad():
            rows, sums = batch(200)
            validation = ((model(rows) - sums) ** 2).mean().item()
        zoo.validated(step, validation)
        print(step + 1, round(loss.item(), 5), round(validation, 5))


@zoo.measured_by
def skill():
    with torch.no_grad():
        rows, sums = batch(1000)
        error = ((model(rows) - sums) ** 2).mean().item()
    return 1 - error / sums.var().item()
