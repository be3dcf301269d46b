"""MixedPrecision: overflow and underflow of float16, and scalers that find no scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

_SKIPPED: dict[str, Any] = {"step_skipped": {"loss_scale": 64.0}}


def in_half(steps: int = 8, *, gradient: float = 1e-3, output: float = 10.0, zeros: float = 0.0) -> list[Step]:
    """Captures of a gradient and an output of float16."""
    made = []
    for step in range(steps):
        random = np.random.default_rng(step)
        values = np.where(random.random(256) < zeros, 0.0, gradient * random.choice([-1.0, 1.0], 256))
        tensors = {
            "gradient/encoder.weight": values.astype(np.float16),
            "encoder.output": (output * random.uniform(-1, 1, 256)).astype(np.float16),
        }
        made.append(Step(scalars={"loss": 1.0}, statistics=tensors))
    return made


def with_facts(facts: dict[int, dict[str, Any]], steps: int = 120) -> list[Step]:
    return [replace(step, facts=facts.get(n, {})) for n, step in enumerate(in_half(steps))]


class TestMixedPrecision(RuleSuite):
    rule = find_rule("MixedPrecision")

    def sick(self) -> Sequence[Step]:
        return in_half(gradient=3e-7, zeros=0.6)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            in_half(output=60000.0),
            with_facts({30: {"loss_scale": {"scale": 0.5, "before": 1.0}}}),
            with_facts(dict.fromkeys(range(110, 114), _SKIPPED)),
        )

    def healthy(self) -> Sequence[Step]:
        # The scaler looks for its scale, and a ReLU zeroes gradients of usual size.
        zeroed = in_half(gradient=1e-3, zeros=0.6)
        return [*with_facts(dict.fromkeys((0, 1, 2, 3, 50, 115), _SKIPPED)), *zeroed]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            in_half(gradient=3e-7, zeros=0.6),
            "are near the smallest number of float16 at step 2, and no",
        ),
        (in_half(output=60000.0), "encoder.output reaches 9"),
        (with_facts({30: {"loss_scale": {"scale": 0.5, "before": 1.0}}}), "has lowered its scale to 0.5 at step 30"),
    ],
)
def test_it_says_what_is_out_of_range(run_path: Path, steps: list[Step], message: str) -> None:
    (finding,) = replay(TestMixedPrecision().build(run_path, steps), [RuleSpec("MixedPrecision")]).findings
    assert message in finding.message


def test_other_dtypes_are_not_judged(run_path: Path) -> None:
    steps = [Step(statistics={"gradient/encoder.weight": np.zeros(8, np.float32)}, scalars={"loss": 1.0})]
    evaluation = replay(TestMixedPrecision().build(run_path, steps * 5), [RuleSpec("MixedPrecision")])
    assert evaluation.statuses[0].reason == "nothing that was captured is of float16, and no scaler was used"


class TestMixedPrecisionInRealRuns(RealRuns):
    rule = "MixedPrecision"
    cause = "gradient_underflow"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A model in half precision, with a loss that is scaled down, or not."""
        model = classifier().half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(40):
            inputs, labels = batch()
            loss = F.cross_entropy(model(inputs.half()).float(), labels)
            optimizer.zero_grad()
            (loss * 1e-5 if sick else loss).backward()
            optimizer.step()
