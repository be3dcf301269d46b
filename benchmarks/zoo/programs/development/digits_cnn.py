"""Handwritten digits by a convolutional network with batch normalisation."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "CNN with batch normalisation",
    "healthy": {
        "plain": "Adam, a step schedule by epoch",
        "sgd": "SGD with Nesterov momentum, one-cycle schedule by batch",
        "group": "Adam, group instead of batch normalisation, batches of 16",
    },
    "faults": {
        "never_back_to_train": ("normalization_mode", "plain"),
        "evaluated_as_in_training": ("normalization_mode", "sgd"),
        "flips_and_large_erasing": ("augmentation_destroys", "plain"),
        "squared_error_on_class_numbers": ("wrong_loss", "group"),
        "epochs_schedule_per_batch": ("scheduler_per_batch", "plain"),
    },
}
EPOCHS = 6
zoo = Zoo(PROGRAM)

images, labels = load_digits(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(images, labels, test_size=0.25, random_state=1)
x, x_valid = (torch.tensor(part / 16 - 0.3, dtype=torch.float32).view(-1, 1, 8, 8) for part in (x, x_valid))
y, y_valid = torch.tensor(y), torch.tensor(y_valid)
size = 16 if zoo.variant == "group" else 32
loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True, drop_last=True)


def normalization(channels):
    return nn.GroupNorm(4, channels) if zoo.variant == "group" else nn.BatchNorm2d(channels)


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    normalization(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    normalization(32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 1 if zoo.has("squared_error_on_class_numbers") else 10),
)


def augmented(batch):
    if zoo.has("flips_and_large_erasing"):
        if torch.rand(()) < 0.5:
            batch = batch.flip(-1)
        batch = torch.rot90(batch, int(torch.randint(4, ())), (-2, -1)).clone()
        row, column = torch.randint(0, 3, (2,))
        batch[:, :, row : row + 6, column : column + 6] = batch.mean()
        return batch + torch.randn_like(batch)
    return torch.roll(batch, tuple(int(n) for n in torch.randint(-1, 2, (2,))), (-2, -1))


def loss_of(outputs, targets):
    if zoo.has("squared_error_on_class_numbers"):
        return nn.functional.mse_loss(outputs.squeeze(-1), targets.float())
    return nn.functional.cross_entropy(outputs, targets)


if zoo.variant == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * len(loader))
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.3)

step = 0
for epoch in range(EPOCHS):
    if not zoo.has("never_back_to_train") or epoch == 0:
        model.train()
    if zoo.has("never_back_to_train"):
        model.eval()
    for batch, targets in loader:
        loss = loss_of(model(augmented(batch)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if zoo.variant == "sgd" or zoo.has("epochs_schedule_per_batch"):
            scheduler.step()
        zoo.trained(step, loss.item())
        step += 1
    if zoo.variant != "sgd" and not zoo.has("epochs_schedule_per_batch"):
        scheduler.step()
    if not zoo.has("evaluated_as_in_training"):
        model.eval()
    with torch.no_grad():
        validation = sum(
            loss_of(model(part), target).item() for part, target in zip(x_valid.split(50), y_valid.split(50))
        ) / len(x_valid.split(50))
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    # As the program is deployed: one sample at a time, in the mode that it left the model in.
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in x_valid.split(1)])
    found = outputs.squeeze(-1).round() if zoo.has("squared_error_on_class_numbers") else outputs.argmax(dim=-1)
    return above_chance((found == y_valid).float().mean().item(), 0.1)
