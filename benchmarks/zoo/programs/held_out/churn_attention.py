"""Which customers leave, from what they did lately, by an LSTM or attention over events."""

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "customers who leave",
    "architecture": "events into an LSTM or attention",
    "healthy": {
        "lstm": "Adam, binary cross-entropy on probabilities",
        "attention": "AdamW, learned weights of events, dropout, one logit",
        "pooled": "RMSprop, maximum over events, five leavers in a hundred",
    },
    "faults": {
        "softmax_on_the_only_output": ("softmax_on_one_unit", "lstm"),
        "amounts_in_cents": ("inputs_not_normalized", "attention"),
        "weights_from_minus_one_to_zero": ("dying_relu", "pooled"),
        "sixteen_layers_of_sigmoids": ("too_deep", "attention"),
    },
}
EVENTS = 12
zoo = Zoo(PROGRAM)


def customers(count):
    """Kind, amount and days since the last one, for each event; who complains after a high bill leaves, mostly."""
    kind = torch.randint(4, (count, EVENTS))
    amount = (torch.randn(count, EVENTS) * 0.6 + 3.4).exp()
    days = torch.rand(count, EVENTS) * 30
    complained = (kind[:, 1:] == 3) & (amount[:, :-1] > 40) & (days[:, 1:] < 20)
    often = complained.sum(dim=1) + 0.3 * torch.randn(count)
    left = often > (1.6 if zoo.variant == "pooled" else 0.6)
    if zoo.has("amounts_in_cents"):
        amount, days = amount * 100, days * 86400
    else:
        amount, days = (amount.log() - 3.4) / 0.6, (days - 15) / 8.7
    # The model sees an event beside the amount of the one before.
    before = torch.cat([torch.zeros(count, 1), amount[:, :-1]], dim=1)
    numbers = torch.stack([amount, before, days], dim=2)
    return torch.cat([nn.functional.one_hot(kind, 4).float(), numbers], dim=2), left.float()


x, y = customers(3000)
x_test, y_test = customers(1500)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(7, 24, batch_first=True)
        self.output = nn.Sequential(
            nn.Linear(24, 1), nn.Softmax(dim=1) if zoo.has("softmax_on_the_only_output") else nn.Sigmoid()
        )

    def forward(self, events):
        return self.output(self.recurrent(events)[1][0][-1]).squeeze(1)


class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.events = nn.Sequential(nn.Linear(7, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)
        layers = [nn.Linear(width, width), nn.ReLU()]
        if zoo.has("sixteen_layers_of_sigmoids"):
            layers = [layer for _ in range(16) for layer in (nn.Linear(width, width), nn.Sigmoid())]
        self.head = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(width, 1))

    def forward(self, events):
        hidden = self.events(events)
        weights = self.score(hidden).softmax(dim=1)
        return self.head((weights * hidden).sum(dim=1)).squeeze(1)


class Pooled(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.events = nn.Sequential(nn.Linear(7, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(2 * width, 1)
        middle = 1.0 if zoo.has("weights_from_minus_one_to_zero") else 0.5
        for layer in (self.events[0], self.events[2]):
            layer.weight.data = 3 * (torch.rand_like(layer.weight) - middle) / layer.in_features**0.5

    def forward(self, events):
        hidden = self.events(events)
        return self.head(torch.cat([hidden.amax(dim=1), hidden.mean(dim=1)], dim=1)).squeeze(1)


if zoo.variant == "lstm":
    model, criterion = Lstm(), nn.BCELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
elif zoo.variant == "attention":
    model, criterion = Attention(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
else:
    model, criterion = Pooled(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1.5e-3)

step = 0
for epoch in range(8):
    model.train()
    for rows in torch.randperm(len(x)).split(48):
        loss = criterion(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    model.eval()
    with torch.no_grad():
        validation = criterion(model(x_test), y_test).item()
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1}: train {loss.item():.4f} test {validation:.4f}")


@zoo.measured_by
def skill():
    """Area under the curve of the model's order of customers, above one half."""
    model.eval()
    with torch.no_grad():
        outputs = model(x_test)
    leaving, staying = outputs[y_test > 0.5], outputs[y_test < 0.5]
    difference = leaving[:, None] - staying[None, :]
    area = (difference > 0).float().mean() + 0.5 * (difference == 0).float().mean()
    return (2 * area - 1).item()
