"""Breast cancer from thirty features of cells, as a binary classification with one logit."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "breast cancer",
    "architecture": "MLP on a table",
    "healthy": {
        "plain": "Adam, weight decay, early stopping",
        "lbfgs": "LBFGS on the whole training set, with a penalty",
        "balanced": "SGD with momentum, classes weighted by frequency",
    },
    "faults": {
        "one_positive_in_fifty": ("class_imbalance", "plain"),
        "labels_from_another_order": ("labels_shuffled", "balanced"),
        "large_and_unchecked": ("under_regularized", "plain"),
        "weights_of_1e_5": ("initialization_too_small", "balanced"),
        "squared_error_on_logits": ("wrong_loss", "lbfgs"),
        "rate_of_1e_7": ("learning_rate_too_low", "plain"),
    },
}
zoo = Zoo(PROGRAM)

features, labels = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(features, labels, test_size=0.3, random_state=2, stratify=labels)
if zoo.has("one_positive_in_fifty"):
    keep = [i for i, label in enumerate(y) if label == 1 or i % 29 == 0]
    x, y = x[keep], y[keep]
if zoo.has("large_and_unchecked"):
    x, y = x[:40], y[:40]
scaler = StandardScaler().fit(x)
x, x_valid = (torch.tensor(scaler.transform(part), dtype=torch.float32) for part in (x, x_valid))
y, y_valid = (torch.tensor(part, dtype=torch.float32) for part in (y, y_valid))
if zoo.has("labels_from_another_order"):
    y = y[torch.randperm(len(y))]

width = 512 if zoo.has("large_and_unchecked") else 32
model = nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
if zoo.has("weights_of_1e_5"):
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1e-5)
            nn.init.zeros_(layer.bias)

weight = (1 - y).sum() / y.sum() if zoo.variant == "balanced" else None
bce = nn.BCEWithLogitsLoss(pos_weight=weight)


def criterion(logits, targets):
    if zoo.has("squared_error_on_logits"):
        return ((logits - 1000 * targets) ** 2).mean()
    return bce(logits, targets)


def validate(step):
    model.eval()
    with torch.no_grad():
        loss = criterion(model(x_valid).squeeze(1), y_valid).item()
    model.train()
    zoo.validated(step, loss)
    return loss


if zoo.variant == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss = loss + 1e-3 * sum((parameter**2).sum() for parameter in model.parameters())
        loss.backward()
        return loss

    for step in range(100):
        loss = optimizer.step(closure)
        zoo.trained(step, loss.item())
        if step % 20 == 19:
            print(f"iteration {step + 1}: {loss.item():.4f}, validation {validate(step):.4f}")
else:
    if zoo.variant == "plain":
        rate = 1e-7 if zoo.has("rate_of_1e_7") else 1e-3
        optimizer = torch.optim.Adam(
            model.parameters(), lr=rate, weight_decay=0 if zoo.has("large_and_unchecked") else 1e-2
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    best, patience, step = float("inf"), 0, 0
    for epoch in range(120):
        for rows in torch.randperm(len(x)).split(32):
            loss = criterion(model(x[rows]).squeeze(1), y[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            zoo.trained(step, loss.item())
            step += 1
        if epoch % 10 == 9:
            validation = validate(step)
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}, validation {validation:.4f}")
            patience = 0 if validation < best else patience + 1
            best = min(best, validation)
            if patience >= 2 and zoo.variant == "plain" and not zoo.has("large_and_unchecked"):
                break


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        outputs = model(x_valid).squeeze(1)
    found = outputs > (500 if zoo.has("squared_error_on_logits") else 0)
    return above_chance(balanced_accuracy_score(y_valid.numpy(), found.numpy()), 0.5)
