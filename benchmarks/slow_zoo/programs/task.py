"""What the programs share: a task that a small network learns, and a training step."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 64, 8
#: Whether this is the slow program, and not its fast twin.
SLOW = sys.argv[1] == "slow"

torch.manual_seed(0)
torch.set_num_threads(1)


def samples(count: int) -> tuple[Tensor, Tensor]:
    """Inputs and their classes."""
    inputs = torch.randn(count, FEATURES)
    return inputs, inputs[:, :CLASSES].argmax(1)


def network(width: int = 512) -> nn.Module:
    """A network whose step takes some milliseconds."""
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> Tensor:
    """One update; returns the loss, with its graph."""
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
