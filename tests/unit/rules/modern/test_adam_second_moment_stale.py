"""AdamSecondMomentStale: gradients that have outgrown their second moment, and a loss that jumps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import sampled
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def course(*, stale: Sequence[int] = (), jumps: Sequence[int] = (), idle: Sequence[int] = ()) -> list[Step]:
    """A flat loss of 2, five times as high at some steps; samples with a ratio of 4, or without a gradient, at some."""

    def sample(step: int) -> dict[str, Any]:
        none = step in idle
        return {"gradient_over_moment": 0.0 if none else 4.0 if step in stale else 1.0, "zero_gradient": float(none)}

    return sampled(120, sample, loss=lambda step: 10.0 if step in jumps else 2.0 + 0.01 * (step % 3))


class TestAdamSecondMomentStale(RuleSuite):
    rule = find_rule("AdamSecondMomentStale")

    def sick(self) -> Sequence[Step]:
        return course(stale=[80], jumps=[84])

    def healthy(self) -> Sequence[Step]:
        # The first samples of a run, a stale one without a jump, jumps that come before one or long after it, and an
        # expert that is used again.
        return [*course(stale=[0, 8, 80, 112], jumps=[40, 79, 90]), *course(idle=[8, 16], stale=[80], jumps=[84])]


@pytest.mark.parametrize(("jump", "severity"), [(81, Severity.WARNING), (88, Severity.WARNING), (89, Severity.INFO)])
def test_the_jump_comes_within_eight_steps(run_path: Path, jump: int, severity: Severity) -> None:
    run = TestAdamSecondMomentStale().build(run_path, course(stale=[80], jumps=[jump]))
    findings = replay(run, [RuleSpec("AdamSecondMomentStale")]).findings
    assert max(finding.severity.rank for finding in findings) == severity.rank
    assert findings[0].tensors == ("stem.weight", "middle.weight", "readout.weight")


def test_optimizers_without_a_second_moment_are_not_judged(run_path: Path) -> None:
    run = TestAdamSecondMomentStale().build(run_path, sampled(20, lambda step: {}))
    (status,) = replay(run, [RuleSpec("AdamSecondMomentStale")]).statuses
    assert status.reason == "no optimizer was sampled that divides by a second moment"


class TestAdamSecondMomentStaleInRealRuns(RealRuns):
    rule = "AdamSecondMomentStale"
    cause = "second_moment_lags"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Half of the features are silent for 77 steps, or not. Then updates of their weights are far too large."""
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.9999))
        with torch.no_grad():
            model[0].weight[:, 8:] = 0  # type: ignore[index]
        watch(model)
        for step in range(100):
            inputs, labels = batch(128)
            inputs[:, 8:] *= 0 if sick and step < 77 else 20
            update(model, optimizer, inputs, labels)
