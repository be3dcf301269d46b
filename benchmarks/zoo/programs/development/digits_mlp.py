"""Handwritten digits by a perceptron with two hidden layers."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "MLP",
    "healthy": {
        "plain": "SGD with momentum 0.9",
        "adamw": "AdamW, linear warm-up, cosine decay, label smoothing 0.1",
        "dropout": "SGD with momentum 0.9, dropout 0.2 after each hidden layer",
    },
    "faults": {
        "softmax_before_cross_entropy": ("double_softmax", "plain"),
        "rate_of_1e_6": ("learning_rate_too_low", "adamw"),
        "weights_constant": ("constant_initialization", "plain"),
        "one_bias_row_for_all": ("constant_initialization", "adamw"),
        "normal_weights": ("initialization_too_large", "plain"),
        "labels_permuted": ("labels_shuffled", "plain"),
        "dropout_of_97_percent": ("dropout_too_high", "dropout"),
    },
}
STEPS = 600
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(inputs, labels, test_size=0.25, random_state=0)
mean, std = x.mean(), x.std()
x, x_valid = (torch.tensor((part - mean) / std, dtype=torch.float32) for part in (x, x_valid))
y, y_valid = torch.tensor(y), torch.tensor(y_valid)
if zoo.has("labels_permuted"):
    y = y[torch.randperm(len(y))]

dropped = 0.0
if zoo.variant == "dropout":
    dropped = 0.97 if zoo.has("dropout_of_97_percent") else 0.2


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Dropout(dropped), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(dropped)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        logits = self.head(self.layers(images))
        return logits.softmax(dim=-1) if zoo.has("softmax_before_cross_entropy") else logits


model = Classifier()
for layer in model.modules():
    if isinstance(layer, nn.Linear):
        if zoo.has("weights_constant"):
            nn.init.constant_(layer.weight, 0.05)
        if zoo.has("one_bias_row_for_all"):
            layer.weight.data = layer.weight.data[:1].repeat(len(layer.weight), 1)
        if zoo.has("normal_weights"):
            nn.init.normal_(layer.weight)

smoothing = 0.0
if zoo.variant == "adamw":
    rate = 1e-6 if zoo.has("rate_of_1e_6") else 2e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=60)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 60)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[60])
    smoothing = 0.1
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = None

for step in range(STEPS):
    model.train()
    batch = torch.randint(len(x), (64,))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[batch]), y[batch], label_smoothing=smoothing)
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        model.eval()
        with torch.no_grad():
            validation = F.cross_entropy(model(x_valid), y_valid)
        zoo.validated(step, validation.item())
        print(f"step {step + 1}: training loss {loss.item():.4f}, validation loss {validation.item():.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=-1) == y_valid).float().mean().item()
    return above_chance(right, 0.1)
