"""AttentionEntropyCollapse: heads that attend to single positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, update
from synthetic_steps import ALWAYS, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def entropies(*heads: Callable[[int], float], steps: int = 30) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        for head, value in enumerate(heads):
            arrays[f"block.attention.attention_entropy.{head}"] = np.full(16, value(step))
            arrays[f"block.attention.attention_logits_max.{head}"] = np.full(16, 3.0)

    return training(steps, change=change, due=ALWAYS)


def falls(step: int) -> float:
    return max(3.0 * 0.7**step, 0.01)


def stays(step: int) -> float:
    return 2.8


class TestAttentionEntropyCollapse(RuleSuite):
    rule = find_rule("AttentionEntropyCollapse")

    def sick(self) -> Sequence[Step]:
        return entropies(falls, falls, falls, stays)

    def healthy(self) -> Sequence[Step]:
        # Some heads become sharp, and attention over two positions has always been.
        return entropies(falls, stays, lambda step: 0.2 if step < 5 else 0.001, stays)


class _Attention(nn.Module):
    """Attention written out, over the inputs in eight pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head, self.scale = nn.Linear(2, 12), nn.Linear(32, 4), 0.5

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(inputs.view(-1, 8, 2)).chunk(3, -1)
        scores = self.scale * query @ key.transpose(-2, -1)
        return self.head((scores.softmax(-1) @ value).flatten(1))  # type: ignore[no-any-return]


class TestAttentionEntropyCollapseInRealRuns(RealRuns):
    rule = "AttentionEntropyCollapse"
    cause = "attention_logits_exploding"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = _Attention()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for step in range(40):
            if sick and step > 10:
                model.scale *= 1.3
            update(model, optimizer, *batch())
