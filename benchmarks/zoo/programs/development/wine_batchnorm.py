"""Three kinds of wine from a chemical analysis: a perceptron with batch normalisation on a small table."""

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from torch import nn

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "wine",
    "architecture": "MLP with batch normalisation",
    "healthy": {
        "plain": "Adam, batches of 32",
        "layer_norm": "AdamW, layer instead of batch normalisation, batches of 4",
    },
    "faults": {
        "batches_of_two": ("normalization_batch_of_one", "plain"),
        "evaluation_mode_from_the_start": ("normalization_mode", "plain"),
        "no_eval_before_evaluation": ("normalization_mode", "plain"),
        "columns_repeated_with_noise": ("correlated_features", "layer_norm"),
        "summed_loss": ("loss_summed", "layer_norm"),
        "softmax_then_cross_entropy": ("double_softmax", "layer_norm"),
    },
}
zoo = Zoo(PROGRAM)

table, kinds = load_wine(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(table, kinds, test_size=0.35, random_state=4, stratify=kinds)
mean, std = x.mean(axis=0), x.std(axis=0)
x, x_valid = (torch.tensor((part - mean) / std, dtype=torch.float32) for part in (x, x_valid))
y, y_valid = torch.tensor(y), torch.tensor(y_valid)
if zoo.has("columns_repeated_with_noise"):
    # One measurement many times, and the others drowned in what is common to all of them.
    common, common_valid = x[:, :1] * 6, x_valid[:, :1] * 6
    x, x_valid = (x + common).repeat(1, 8), (x_valid + common_valid).repeat(1, 8)

batched = zoo.variant == "plain"


def normalization(width):
    return nn.BatchNorm1d(width) if batched else nn.LayerNorm(width)


model = nn.Sequential(
    nn.Linear(x.shape[1], 32),
    normalization(32),
    nn.ReLU(),
    nn.Linear(32, 32),
    normalization(32),
    nn.ReLU(),
    nn.Linear(32, 3),
)
if zoo.has("softmax_then_cross_entropy"):
    model.append(nn.Softmax(dim=1))

size = 2 if zoo.has("batches_of_two") else 32 if batched else 4
if batched:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    epochs = 60 if not zoo.has("batches_of_two") else 4
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02 if zoo.has("summed_loss") else 1e-3)
    epochs = 12
reduction = "sum" if zoo.has("summed_loss") else "mean"
if zoo.has("summed_loss"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

step = 0
for epoch in range(epochs):
    model.train(not zoo.has("evaluation_mode_from_the_start"))
    for rows in torch.randperm(len(x)).split(size):
        if len(rows) < 2:
            continue
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows], reduction=reduction)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    if not zoo.has("no_eval_before_evaluation"):
        model.eval()
    with torch.no_grad():
        validation = nn.functional.cross_entropy(model(x_valid), y_valid).item()
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    # As the program is deployed: in the mode that it left the model in, a few bottles at a time.
    with torch.no_grad():
        found = torch.cat([model(part).argmax(dim=1) for part in x_valid.split(3)])
    return above_chance((found == y_valid).float().mean().item(), 1 / 3)
