"""LossNotDecreasing: a loss that stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import MODULES, constant_loss, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestLossNotDecreasing(RuleSuite):
    rule = find_rule("LossNotDecreasing")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(400, loss=constant_loss(2.3))

    def healthy(self) -> Sequence[Step]:
        # Falls, then stays at its noisy floor for long.
        return training(1000, noise=0.5, loss=lambda n: 2.3 * 0.98**n + 0.01)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (training(100, loss=constant_loss(2.3), noise=0.02),)


class TestLossNotDecreasingInRealRuns(RealRuns):
    rule = "LossNotDecreasing"
    cause = "nothing_to_learn"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
        watch(model)
        for _ in range(100):
            inputs, labels = batch(64)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels[torch.randperm(64)] if sick else labels).backward()
            optimizer.step()


def found(path: Path, steps: Sequence[Step]) -> list[str]:
    findings = replay(build_run(path, steps, modules=MODULES), [RuleSpec("LossNotDecreasing")]).findings
    return [finding.message for finding in findings]


@pytest.mark.parametrize(
    "loss",
    [
        # Slow and sure; a plateau that ends; a loss that changes its sign; one that converges within a few steps.
        lambda n: 3.0 - 0.0001 * n,
        lambda n: 2.3 if n < 150 else 2.3 * 0.99 ** (n - 150),
        lambda n: 0.1 * math.sin(n),
        lambda n: 0.2 + 2.0 * 0.3**n,
    ],
)
def test_a_loss_that_falls_or_need_not_fall_is_silent(run_path: Path, loss: Callable[[int], float]) -> None:
    assert found(run_path, training(400, loss=loss, noise=0.002)) == []


def test_a_loss_that_ends_at_zero_from_below_is_silent(run_path: Path) -> None:
    """A policy gradient whose advantages vanish as every action is right."""
    assert found(run_path, training(400, loss=lambda n: min(0.0, 0.005 * n - 0.5), noise=0.0)) == []


def test_a_model_that_was_trained_before_is_silent(run_path: Path) -> None:
    steps = [Step(scalars={**step.scalars, "accuracy": 0.7}, statistics=step.statistics)
             for step in training(400, loss=constant_loss(1.0))]  # fmt: skip
    assert found(run_path, steps) == []
