"""Prices of houses from a table whose columns have very different units."""

import numpy as np
import torch
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "prices of houses",
    "architecture": "MLP on a table, one or several folds",
    "healthy": {
        "plain": "Adam, squared error of standardised log prices",
        "folds": "three folds with a model each, SGD with momentum",
        "slow": "AdamW at a low rate for 2,400 steps",
    },
    "faults": {
        "columns_as_they_are": ("inputs_not_normalized", "plain"),
        "scaled_in_the_table_and_in_the_model": ("inputs_normalized_twice", "plain"),
        "weight_decay_of_one": ("over_regularized", "plain"),
        "layers_without_relu": ("activation_missing", "folds"),
        "rate_of_three": ("learning_rate_too_high", "folds"),
        "bfloat16_throughout": ("bf16_stall", "slow"),
    },
}
zoo = Zoo(PROGRAM)
random = np.random.default_rng(7 + zoo.seed)


def table(count):
    """Area in m2, year, metres to the centre, income of the quarter, rooms, floor, and the price."""
    area = random.gamma(6, 18, count) + 25
    year = random.integers(1890, 2021, count)
    centre = random.exponential(6000, count)
    income = random.normal(48000, 12000, count)
    rooms = (area / 28 + random.normal(0, 0.7, count)).round().clip(1)
    floor = random.integers(0, 9, count)
    charm = 0.5 * np.sin((year - 1890) / 130 * 2 * np.pi)  # old and new are dear, what lies between is cheap
    lift = 0.3 * np.where(floor > 4, (year > 1965) * 2.0 - 1.0, 0.0)
    price = 0.5 * np.log(area) - centre / 12000 * (area > 100) + income / 60000 + charm + lift
    price = price + random.normal(0, 0.12, count)
    return np.stack([area, year, centre, income, rooms, floor], axis=1), price


features, prices = table(2400)
scaler = StandardScaler().fit(features[:1800])
scaled = features if zoo.has("columns_as_they_are") else scaler.transform(features)
prices = (prices - prices[:1800].mean()) / prices[:1800].std()
dtype = torch.bfloat16 if zoo.has("bfloat16_throughout") else torch.float32
x, y = torch.tensor(scaled, dtype=dtype), torch.tensor(prices, dtype=dtype)
x, x_test, y, y_test = x[:1800], x[1800:], y[:1800], y[1800:]


class Pricer(nn.Module):
    def __init__(self):
        super().__init__()
        activation = nn.Identity if zoo.has("layers_without_relu") else nn.ReLU
        self.register_buffer("mean", torch.tensor(scaler.mean_, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(scaler.scale_, dtype=torch.float32))
        self.layers = nn.Sequential(nn.Linear(6, 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 1))

    def forward(self, rows):
        if zoo.has("scaled_in_the_table_and_in_the_model"):
            rows = (rows - self.mean) / self.scale
        return self.layers(rows).squeeze(-1)


def fit(x, y, x_valid, y_valid, offset=0):
    model = Pricer().to(dtype)
    epochs = 12
    if zoo.variant == "plain":
        decay = 1.0 if zoo.has("weight_decay_of_one") else 1e-5
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=decay)
    elif zoo.variant == "folds":
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0 if zoo.has("rate_of_three") else 0.03, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4)
        epochs = 52
    step = offset
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(x)).split(32):
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            zoo.trained(step, loss.item())
            step += 1
        model.eval()
        with torch.no_grad():
            validation = nn.functional.mse_loss(model(x_valid), y_valid).item()
        zoo.validated(step, validation)
        if epoch % 4 == 3:
            print(f"  epoch {epoch + 1}: {loss.item():.4f}, validation {validation:.4f}")
    return model, step


models, step = [], 0
if zoo.variant == "folds":
    for fold, (chosen, left_out) in enumerate(KFold(3, shuffle=True, random_state=0).split(x)):
        print("fold", fold + 1)
        model, step = fit(x[chosen], y[chosen], x[left_out], y[left_out], offset=step)
        models.append(model)
else:
    models.append(fit(x[:1500], y[:1500], x[1500:], y[1500:])[0])


@zoo.measured_by
def skill():
    with torch.no_grad():
        predicted = sum(model.eval()(x_test).float() for model in models) / len(models)
    return 1 - (((predicted - y_test.float()) ** 2).mean() / y_test.float().var()).item()
