"""EmbeddingNormGrowth: rows that grow and do not level off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from real_runs import RealRuns, Watch
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.records import ModuleKind
from watchglass.rules import default_rules, find_rule
from watchglass.testing import Step
from watchglass.testing.layers import Modules
from watchglass.testing.rule_suite import RuleSuite


def rows(size: Callable[[int], float], steps: int = 400) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        arrays["words.weight"] = size(step) * np.random.default_rng(0).normal(size=(32, 8))

    return training(steps, change=change)


class TestEmbeddingNormGrowth(RuleSuite):
    rule = find_rule("EmbeddingNormGrowth")
    modules: ClassVar[Modules] = {"words": ModuleKind.EMBEDDING}

    def sick(self) -> Sequence[Step]:
        return rows(lambda step: 0.02 * 1.01**step)

    def healthy(self) -> Sequence[Step]:
        # Small initial rows grow, and level off.
        return rows(lambda step: 0.02 + 0.3 * (1 - 0.9**step))


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.layer_norm(self.words(tokens), (8,)))  # type: ignore[no-any-return]


class TestEmbeddingNormGrowthInRealRuns(RealRuns):
    rule = "EmbeddingNormGrowth"
    cause = "embedding_grows"

    def rules(self) -> list[RuleSpec]:
        """Judged early, for a short run."""
        return [*default_rules(), RuleSpec(self.rule, {"start": 40})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = _Words()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(80):
            tokens = torch.randint(16, (64,))
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), (tokens * 3 + 1) % 16).backward()
            optimizer.step()
            if sick:
                with torch.no_grad():
                    model.words.weight *= 1.05
