"""Forecast the load of a power grid, hour by hour, with an LSTM: an ordinary PyTorch script.

The load is made here: a daily and a weekly cycle, noise, and one hour in twelve weeks in which the meter fails.

    python train.py             learns for a while, then the loss is NaN
    python train.py --clip 1.0  learns until its end
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

HOURS, WINDOW = 24 * 7 * 12, 48


class Variance(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.logarithm = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.logarithm(x).exp()


class Forecaster(nn.Module):
    """An LSTM over the last hours, then the mean and the variance of the next one."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.mean = nn.Linear(hidden, 1)
        self.variance = Variance(hidden)

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.lstm(windows)
        last = states[:, -1]
        return self.mean(last).squeeze(1), self.variance(last).squeeze(1)


def load_of_the_grid() -> Tensor:
    """Megawatts by hour."""
    hours = torch.arange(HOURS, dtype=torch.float32)
    daily = torch.sin(2 * math.pi * hours / 24) + 0.3 * torch.sin(4 * math.pi * hours / 24 + 1)
    weekly = 0.5 * torch.cos(2 * math.pi * hours / (24 * 7))
    load = 500 + 100 * (daily + weekly + 0.2 * torch.randn(HOURS))
    load[HOURS // 2] = 65_535  # the meter fails
    return load


def loaders(batch_size: int) -> tuple[DataLoader, DataLoader]:
    load = (load_of_the_grid() - 500) / 100
    windows = load.unfold(0, WINDOW + 1, 1)
    inputs, targets = windows[:, :-1].unsqueeze(2), windows[:, -1]
    train = int(0.85 * len(inputs))
    return (
        DataLoader(TensorDataset(inputs[:train], targets[:train]), batch_size, shuffle=True),
        DataLoader(TensorDataset(inputs[train:], targets[train:]), batch_size=512),
    )


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    total = 0.0
    for inputs, targets in loader:
        mean, variance = model(inputs)
        total += F.gaussian_nll_loss(mean, targets, variance).item() * len(targets)
    return total / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip", type=float, help="largest norm of the gradient")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader, validation_loader = loaders(args.batch_size)
    model = Forecaster(args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            mean, variance = model(inputs)
            loss = F.gaussian_nll_loss(mean, targets, variance)
            loss.backward()
            if args.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            total += loss.item() * len(targets)
        training = total / len(train_loader.dataset)
        print(
            f"epoch {epoch}: training loss {training:.4f}, validation loss {validate(model, validation_loader):.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
