"""UpdateBelowPrecision: updates that are lost in the rounding of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import constant_loss, sampled
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestUpdateBelowPrecision(RuleSuite):
    rule = find_rule("UpdateBelowPrecision")

    def sick(self) -> Sequence[Step]:
        lost = {"dtype": "bfloat16", "unchanged": 0.95, "unmoved": 0.9}
        return sampled(80, lambda n: lost, loss=constant_loss(2.3))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        most = {"dtype": "bfloat16", "unchanged": 0.8, "unmoved": 0.7}
        return [
            sampled(80, lambda n: {"unchanged": 1.0, "unmoved": 1.0}, loss=constant_loss(2.3)),
            sampled(80, lambda n: most, loss=constant_loss(2.3)),
            sampled(12, lambda n: most, loss=constant_loss(2.3)),
        ]

    def healthy(self) -> Sequence[Step]:
        # Single updates are lost, and several are not: compensated sums, or rounding at random.
        return sampled(200, lambda n: {"dtype": "bfloat16", "unchanged": 0.95, "unmoved": 0.1})


class TestUpdateBelowPrecisionInRealRuns(RealRuns):
    rule = "UpdateBelowPrecision"
    cause = "update_below_precision"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Weights in bfloat16 at a low rate; the twin keeps them in float32."""
        model = classifier().to(torch.bfloat16 if sick else torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5 if sick else 1e-3)
        watch(model)
        for _ in range(48):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs.to(model[0].weight.dtype)).float(), labels).backward()
            optimizer.step()
