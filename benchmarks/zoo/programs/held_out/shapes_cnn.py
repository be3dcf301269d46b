"""Five shapes in noisy grey photographs, by a small convolutional network."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "shapes in grey images",
    "architecture": "CNN without normalisation layers",
    "healthy": {
        "plain": "SGD with momentum, shuffled batches of 32",
        "log_probabilities": "Adam, log-softmax in the model and NLLLoss",
        "autocast": "AdamW, bfloat16 autocast, batches of 16",
        "transfer": "a backbone trained on other shapes, frozen on purpose, and a new head",
    },
    "faults": {
        "bytes_as_they_are": ("raw_pixels", "plain"),
        "divided_by_255_twice": ("inputs_normalized_twice", "plain"),
        "folders_in_order": ("data_not_shuffled", "plain"),
        "raw_outputs_into_nll": ("missing_softmax", "log_probabilities"),
        "biases_of_minus_one": ("dying_relu", "autocast"),
    },
}
CLASSES = ("disc", "square", "triangle", "cross", "ring")
SIZE = 24
zoo = Zoo(PROGRAM)
random = np.random.default_rng(100 + zoo.seed)


def draw(shape):
    """A shape somewhere on a background that is neither even nor clean, as bytes."""
    across, down = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    x, y = across - random.uniform(8, 16), down - random.uniform(8, 16)
    radius = random.uniform(4.5, 7.5)
    distance = np.hypot(x, y)
    inside = {
        "disc": distance < radius,
        "square": np.maximum(abs(x), abs(y)) < 0.85 * radius,
        "triangle": (y < 0.7 * radius) & (y > 2 * abs(x) - radius),
        "cross": np.minimum(abs(x), abs(y)) < 0.25 * radius,
        "ring": abs(distance - radius) < 1.2,
    }[shape] & (distance < 1.3 * radius)
    background = random.uniform(70, 130) + random.uniform(-1.5, 1.5) * across + random.uniform(-1.5, 1.5) * down
    image = background + inside * random.uniform(35, 90) + random.normal(0, 10, inside.shape)
    return image.clip(0, 255).astype(np.uint8)


def photographs(per_class):
    """Images in the order of their folders, one folder per class."""
    images = np.stack([draw(shape) for shape in CLASSES for _ in range(per_class)])
    return torch.tensor(images).unsqueeze(1), torch.arange(len(CLASSES)).repeat_interleave(per_class)


def prepare(images):
    if zoo.has("bytes_as_they_are"):
        return images.float()
    images = images.float() / 255
    if zoo.has("divided_by_255_twice"):
        images = images / 255
    return (images - 0.43) / 0.13


x, y = photographs(per_class=400)
x_valid, y_valid = photographs(per_class=80)
x, x_valid = prepare(x), prepare(x_valid)


def layer(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


backbone = nn.Sequential(layer(1, 8), layer(8, 16), layer(16, 32), nn.Flatten())


def network(outputs):
    model = nn.Sequential(backbone, nn.Linear(32 * 9, 48), nn.ReLU(), nn.Linear(48, outputs))
    if zoo.has("biases_of_minus_one"):
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.constant_(module.bias, -1.0)
    if zoo.variant == "log_probabilities" and not zoo.has("raw_outputs_into_nll"):
        model.append(nn.LogSoftmax(dim=1))
    return model


if zoo.variant == "transfer":
    # The shapes of the first three folders, for which a backbone is there already.
    pretrained = network(3)
    pretraining = torch.optim.Adam(pretrained.parameters(), lr=2e-3)
    for rows in torch.randint(1200, (250, 32)):
        loss = F.cross_entropy(pretrained(x[rows]), y[rows])
        pretraining.zero_grad()
        loss.backward()
        pretraining.step()
    for parameter in backbone.parameters():
        parameter.requires_grad = False

model = network(len(CLASSES))
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
if zoo.variant == "plain":
    optimizer = torch.optim.SGD(trainable, lr=0.02, momentum=0.9)
elif zoo.variant == "log_probabilities":
    optimizer = torch.optim.Adam(trainable, lr=2e-3)
else:
    optimizer = torch.optim.AdamW(trainable, lr=2e-3)
criterion = nn.NLLLoss() if zoo.variant == "log_probabilities" else nn.CrossEntropyLoss()
loader = DataLoader(
    TensorDataset(x, y), batch_size=16 if zoo.variant == "autocast" else 32, shuffle=not zoo.has("folders_in_order")
)

step = 0
for epoch in range(5):
    model.train()
    for images, targets in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=zoo.variant == "autocast"):
            loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    model.eval()
    with torch.no_grad():
        validation = criterion(model(x_valid), y_valid).item()
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=1) == y_valid).float().mean().item()
    return above_chance(right, 1 / len(CLASSES))
