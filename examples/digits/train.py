"""Train a small network to read scikit-learn's handwritten digits: an ordinary PyTorch script.

``--fault`` adds one of five faults that occur in practice:

    python train.py                        reaches about 99 % validation accuracy in some ten seconds
    python train.py --fault learning-rate  diverges to NaN within the first steps
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

FAULTS = {
    "learning-rate": "a learning rate of 50",
    "sigmoid-stack": "ten hidden layers with only sigmoids between them",
    "dying-relu": "a large negative bias in every hidden layer",
    "identical-init": "all weights of a layer start at the same value",
    "overfit": "only the first 100 images, no regularization",
}


class ConvNet(nn.Module):
    """Two convolutions, the second one residual, then ``depth`` hidden layers."""

    def __init__(self, activation: Callable[[], nn.Module], depth: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.act1 = activation()
        self.conv2 = nn.Conv2d(32, 32, kernel_size=3, padding=1)
        self.act2 = activation()
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Sequential()
        width = 32 * 4 * 4
        for i in range(1, depth + 1):
            self.hidden.add_module(f"fc{i}", nn.Linear(width, 128))
            self.hidden.add_module(f"act{i}", activation())
            width = 128
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.act1(self.conv1(images))
        x = self.pool(x + self.act2(self.conv2(x)))
        x = self.hidden(x.flatten(1))
        return self.classifier(self.dropout(x))


class Perceptron(nn.Module):
    """A stem, ``depth`` blocks of the same width, a readout; the activation is a function, not a module."""

    def __init__(self, activation: Callable[[Tensor], Tensor], depth: int, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.stem = nn.Linear(8 * 8, 128)
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(depth))
        self.readout = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.activation(self.stem(images.flatten(1)))
        for block in self.blocks:
            x = self.activation(block(F.dropout(x, self.dropout, self.training)))
        return self.readout(x)


def build_model(name: str, fault: str | None) -> nn.Module:
    # Dropout regularizes; it would also gradually break the symmetry of identical weights.
    dropout = 0.0 if fault in ("overfit", "identical-init") else 0.25
    deep = fault == "sigmoid-stack"
    model: nn.Module
    if name == "cnn":
        model = ConvNet(nn.Sigmoid if deep else nn.ReLU, depth=10 if deep else 1, dropout=dropout)
    else:
        model = Perceptron(torch.sigmoid if deep else F.relu, depth=10 if deep else 2, dropout=dropout)

    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    if fault == "dying-relu":
        for layer in layers[:-1]:
            nn.init.constant_(layer.bias, -1.0)
    if fault == "identical-init":
        for layer in layers:
            nn.init.constant_(layer.weight, 0.5 / layer.weight[0].numel())
            nn.init.zeros_(layer.bias)
    return model


def load_data(batch_size: int, fault: str | None) -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(digits.target)
    shuffled = torch.randperm(len(images))
    train, validation = shuffled[:-360], shuffled[-360:]
    if fault == "overfit":  # The file is ordered by writer, so the first 100 images come from only a few.
        train, validation = torch.arange(100), validation[validation >= 100]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size, shuffle=True),
        DataLoader(TensorDataset(images[validation], labels[validation]), batch_size=120),
    )


def train_epoch(model, loader, optimizer, scheduler, pixel_noise):
    model.train()
    total = 0.0
    for images, labels in loader:
        images = images + pixel_noise * torch.randn_like(images)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item() * len(images)
    return total / len(loader.dataset)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, correct = 0.0, 0
    for images, labels in loader:
        logits = model(images)
        total += F.cross_entropy(logits, labels).item() * len(images)
        correct += (logits.argmax(dim=1) == labels).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader, validation_loader = load_data(args.batch_size, args.fault)
    model = build_model(args.model, args.fault)
    lr = 50.0 if args.fault == "learning-rate" else args.lr
    weight_decay, pixel_noise = (0.0, 0.0) if args.fault == "overfit" else (1e-3, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=weight_decay)
    steps = args.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=lr / 20)

    for epoch in range(1, args.epochs + 1):
        training_loss = train_epoch(model, train_loader, optimizer, scheduler, pixel_noise)
        loss, accuracy = validate(model, validation_loader)
        if epoch == 1 or epoch % 10 == 0 or epoch == args.epochs:
            print(
                f"epoch {epoch:3d}: training loss {training_loss:.4f}, "
                f"validation loss {loss:.4f}, validation accuracy {accuracy:.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
