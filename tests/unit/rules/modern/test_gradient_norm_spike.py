"""GradientNormSpike: jumps of the norm of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from real_runs import RealRuns, Watch, batch, classifier
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def norms(factor: Callable[[int], float], steps: int = 300, facts: dict[str, Any] | None = None) -> list[Step]:
    """Norms that vary by a third, times ``factor`` of the step."""
    noise = np.exp(0.3 * np.random.default_rng(3).normal(size=steps))
    return [
        Step(scalars={"loss": 1.0, "gradient_norm": 0.5 * noise[step] * factor(step)}, facts=facts or {})
        for step in range(steps)
    ]


def spikes(step: int) -> float:
    return 60.0 if step > 80 and step % 40 == 0 else 1.0


class TestGradientNormSpike(RuleSuite):
    rule = find_rule("GradientNormSpike")

    def sick(self) -> Sequence[Step]:
        return norms(spikes)

    def healthy(self) -> Sequence[Step]:
        return norms(lambda step: 60.0 if step in (100, 200) else 1.0)


def test_spikes_that_are_clipped_are_noted(run_path: Path) -> None:
    clip = {"clip": {"function": "clip_grad_norm_", "max_norm": 1.0, "calls": 1, "compared": 1, "exceeded": 0}}
    run = TestGradientNormSpike().build(run_path, norms(spikes, facts=clip))
    assert {f.severity for f in replay(run, [RuleSpec("GradientNormSpike")]).findings} == {Severity.INFO}


def test_a_small_change_of_norms_that_never_varied_is_no_spike(run_path: Path) -> None:
    steps = [Step(scalars={"loss": 1.0, "gradient_norm": 1.0}) for _ in range(80)]
    run = TestGradientNormSpike().build(run_path, [*steps, Step(scalars={"loss": 1.0, "gradient_norm": 1.1})])
    assert not replay(run, [RuleSpec("GradientNormSpike")]).findings


class TestGradientNormSpikeInRealRuns(RealRuns):
    rule = "GradientNormSpike"
    cause = "gradient_not_clipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        watch(model)
        for step in range(80):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            if step >= 40 and step % 6 == 0:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad *= 100
            if not sick:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
