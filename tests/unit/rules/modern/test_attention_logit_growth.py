"""AttentionLogitGrowth: logits beyond what a softmax resolves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from real_runs import RealRuns, Watch, fit
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "AttentionLogitGrowth"


def logits(largest: Callable[[int], float], steps: int = 40) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        for head, size in enumerate((largest(step), 3.0)):
            arrays[f"block.attention.attention_logits_max.{head}"] = np.linspace(0, size, 32)

    return training(steps, change=change)


class TestAttentionLogitGrowth(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return logits(lambda n: 2.0 * 1.5**n)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (logits(lambda n: 900.0), logits(lambda n: 0.1 if n < 30 else 300.0))

    def healthy(self) -> Sequence[Step]:
        return logits(lambda n: 30.0 + (200.0 if n == 9 else 0.0))


def test_large_logits_that_do_not_grow_are_an_info(run_path: Path) -> None:
    """Those of some pretrained models."""
    (finding,) = replay(build_run(run_path, logits(lambda n: 150.0)), [RuleSpec(RULE)]).findings
    assert finding.severity is Severity.INFO
    assert finding.message.startswith("the largest attention logit of head 0 of block.attention is 150 at step 2")


class _Attention(nn.Module):
    """Attention written out, over the inputs in four pieces."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.qkv, self.head, self.scale = nn.Linear(4, 12), nn.Linear(16, 4), scale

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(inputs.view(-1, 4, 4)).chunk(3, -1)
        scores = self.scale * query @ key.transpose(-2, -1)
        return self.head((scores.softmax(-1) @ value).flatten(1))  # type: ignore[no-any-return]


class TestAttentionLogitGrowthInRealRuns(RealRuns):
    rule = "AttentionLogitGrowth"
    cause = "attention_logits_exploding"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(_Attention(5000.0 if sick else 0.5), watch, rate=0.01, steps=12)
