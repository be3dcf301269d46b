"""Whether a shown advertisement is clicked: embeddings of categories with sparse gradients, and a few numbers."""

import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "clicks",
    "architecture": "wide and deep with sparse embeddings",
    "healthy": {
        "sparse": "SparseAdam for the tables, Adam for the rest",
        "adagrad": "Adagrad for all of it, summed embeddings, weighted classes",
        "dropout": "AdamW, dense gradients, dropout 0.2, one click in six",
    },
    "faults": {
        "one_click_in_three_hundred": ("class_imbalance", "dropout"),
        "one_number_in_forty_columns": ("correlated_features", "sparse"),
        "clicks_of_other_rows": ("labels_shuffled", "sparse"),
        "large_table_and_few_rows": ("under_regularized", "dropout"),
        "dropout_of_97_percent": ("dropout_too_high", "dropout"),
    },
}
SIZES = (300, 40, 12)
zoo = Zoo(PROGRAM)

tastes = [torch.randn(size) for size in SIZES]
slopes = torch.tensor([0.8, -0.6, 0.5, 0.0, 0.3])


def log(count, rare=False):
    columns = torch.stack([(size * torch.rand(count) ** 2).long() for size in SIZES], dim=1)
    numbers = torch.randn(count, 5)
    score = sum(taste[column] for taste, column in zip(tastes, columns.T)) + numbers @ slopes + numbers[:, 3].square()
    threshold = score.quantile(0.997 if rare else 0.85) if zoo.variant == "dropout" else score.median()
    return columns, numbers, (score + 0.5 * torch.randn(count) > threshold).float()


columns, numbers, clicks = log(6000, rare=zoo.has("one_click_in_three_hundred"))
columns_valid, numbers_valid, clicks_valid = log(1500)
if zoo.has("one_number_in_forty_columns"):
    shared = 6 * numbers[:, :1]
    numbers, numbers_valid = (numbers + shared).repeat(1, 8), (numbers_valid + 6 * numbers_valid[:, :1]).repeat(1, 8)
if zoo.has("clicks_of_other_rows"):
    clicks = clicks[torch.randperm(len(clicks))]
if zoo.has("large_table_and_few_rows"):
    columns, numbers, clicks = columns[:150], numbers[:150], clicks[:150]
numbers_valid = (numbers_valid - numbers.mean(dim=0)) / numbers.std(dim=0)
numbers = (numbers - numbers.mean(dim=0)) / numbers.std(dim=0)


class WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        width = 256 if zoo.has("large_table_and_few_rows") else 8
        self.tables = nn.ModuleList(nn.Embedding(size, width, sparse=zoo.variant == "sparse") for size in SIZES)
        dropout = 0.97 if zoo.has("dropout_of_97_percent") else 0.2 if zoo.variant == "dropout" else 0.0
        if zoo.has("large_table_and_few_rows"):
            dropout = 0.0
        hidden = 4 * width + 32
        self.deep = nn.Sequential(
            nn.Linear(3 * width + numbers.shape[1], hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )
        self.wide = nn.Linear(numbers.shape[1], 1)

    def forward(self, columns, numbers):
        found = [table(column) for table, column in zip(self.tables, columns.T)]
        return (self.deep(torch.cat([*found, numbers], dim=1)) + self.wide(numbers)).squeeze(1)


model = WideAndDeep()
rest = [*model.deep.parameters(), *model.wide.parameters()]
if zoo.variant == "sparse":
    tables = torch.optim.SparseAdam(list(model.tables.parameters()), lr=5e-3)
    optimizers = [tables, torch.optim.Adam(rest, lr=2e-3)]
elif zoo.variant == "adagrad":
    optimizers = [torch.optim.Adagrad(model.parameters(), lr=0.03)]
else:
    decay = 0.0 if zoo.has("large_table_and_few_rows") else 0.05
    optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=decay)]
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.2) if zoo.variant == "adagrad" else None)

for step in range(500):
    model.train()
    rows = torch.randint(len(clicks), (64,))
    loss = criterion(model(columns[rows], numbers[rows]), clicks[rows])
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        model.eval()
        with torch.no_grad():
            validation = criterion(model(columns_valid, numbers_valid), clicks_valid).item()
        zoo.validated(step, validation)
        print(f"{step + 1} train {loss.item():.4f} valid {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        scores = model(columns_valid, numbers_valid)
    return 2 * roc_auc_score(clicks_valid.numpy(), scores.numpy()) - 1
