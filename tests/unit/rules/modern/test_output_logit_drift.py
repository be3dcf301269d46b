"""OutputLogitDrift: all logits of the output move together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import ALWAYS, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def log_z(value: Callable[[int], float], steps: int = 60) -> list[Step]:
    def change(step: int, arrays: dict[str, np.ndarray]) -> None:
        arrays["logsumexp"] = value(step) + np.random.default_rng(step).normal(size=32)

    return training(steps, change=change, due=ALWAYS)


class TestOutputLogitDrift(RuleSuite):
    rule = find_rule("OutputLogitDrift")

    def sick(self) -> Sequence[Step]:
        return log_z(lambda step: 10.0 + 2.0 * step)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (log_z(lambda step: 10.0 - 2.0 * step),)

    def healthy(self) -> Sequence[Step]:
        return log_z(lambda step: 10.0 - 0.1 * step)


@pytest.mark.parametrize(("slope", "severities"), [(0.5, {Severity.INFO}), (0.1, set())])
def test_a_smaller_drift_is_an_info(run_path: Path, slope: float, severities: set[Severity]) -> None:
    run = TestOutputLogitDrift().build(run_path, log_z(lambda step: slope * step))
    assert {finding.severity for finding in replay(run, [RuleSpec("OutputLogitDrift")]).findings} == severities


class TestOutputLogitDriftInRealRuns(RealRuns):
    rule = "OutputLogitDrift"
    cause = "output_logits_drift"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A term of the loss that pulls all logits along, as a missing z-loss does not hold them."""
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for step in range(40):
            inputs, labels = batch()
            if sick:
                with torch.no_grad():
                    model[-1].bias += 4.0 if step > 8 else 0.0
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
