"""A small mixture of experts, for tests of rules about routers."""

from __future__ import annotations

import torch
from torch import nn


class Mixture(nn.Module):
    """Each row of the inputs goes to one of four experts."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.top_k = 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(inputs).softmax(-1).max(-1)
        mixed = torch.zeros_like(inputs)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            mixed[rows] = weights[rows, None] * torch.relu(expert(inputs[rows]))
        return inputs + mixed
