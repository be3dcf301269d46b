"""PaddingNotMasked: padding affects the output of the model or its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from real_runs import RealRuns, Watch, update
from sketches_of import judged, sample
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "PaddingNotMasked"


def tokens(length: int, random: np.random.Generator) -> Any:
    made = random.integers(1, 50, (16, 40))
    made[:, length:] = 0
    return made


def run(length: int, gradient: float, *, labels: bool = False) -> list[Step]:
    random, made = np.random.default_rng(0), []
    for _ in range(8):
        inputs = tokens(length, random)
        sketch = sample(inputs).sketch()
        assert sketch is not None
        data = sketch.to_data()
        data["padding"]["gradient"] = gradient
        targets = inputs.reshape(-1) if labels else random.integers(0, 50, 640)
        facts = judged("cross_entropy", random.normal(size=(640, 50)), targets)
        made.append(Step(scalars={"loss": 1.0}, facts={"input_sketch": data, **facts}, weight=16.0))
    return made


class TestPaddingNotMasked(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return run(5, gradient=2.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (run(5, gradient=0.0, labels=True),)

    def healthy(self) -> Sequence[Step]:
        return run(5, gradient=0.0)

    def test_a_little_padding_is_no_fault(self, tmp_path: Any) -> None:
        assert not self.serious(self.build(tmp_path / "run", run(30, gradient=2.0)))

    def test_the_number_of_a_class_is_no_token(self, tmp_path: Any) -> None:
        steps = [
            Step(facts={**step.facts, **judged("cross_entropy", np.zeros((16, 2)), np.zeros(16, int))})
            for step in run(5, gradient=0.0)
        ]
        assert not self.serious(self.build(tmp_path / "run", steps))


class Encoder(nn.Module):
    def __init__(self, *, masks: bool) -> None:
        super().__init__()
        self.masks = masks
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor) -> Tensor:
        hidden, padding = self.embedding(words), words == 0
        mixed, _ = self.attention(hidden, hidden, hidden, key_padding_mask=padding if self.masks else None)
        output: Tensor = self.head(mixed[:, 0])
        return output


class TestPaddingNotMaskedInRealRuns(RealRuns):
    rule = "PaddingNotMasked"
    cause = "padding_not_masked"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = Encoder(masks=not sick)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(24):
            words = torch.randint(1, 20, (32, 24))
            words[:, 4:] = 0
            update(model, optimizer, words, words[:, 0] % 4)
