"""LossNotDecreasing: a loss that stays."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import MODULES, constant_loss, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Mode
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


class Policy(nn.Module):
    """A small model of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(12, 16), nn.Linear(16, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(torch.tanh(self.embedding(tokens)))
        return logits


def _log_probability(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    shares = model(tokens[:, :-1]).log_softmax(-1)
    return shares.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)


class TestAReferenceThatIsThePolicyInRealRuns(RealRuns):
    """Direct preference optimization with the policy as its own reference; the twin has a copy."""

    rule = "LossNotDecreasing"
    cause = "reference_is_policy"

    def train(self, watch: Watch, *, sick: bool) -> None:
        policy = Policy()
        reference = policy if sick else copy.deepcopy(policy).requires_grad_(False)
        reference.eval()
        watch(policy)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
        for _ in range(100):
            chosen = (torch.randint(12, (16, 1)) + torch.arange(8)) % 12
            rejected = torch.randint(12, (16, 8))
            with torch.no_grad():
                before = _log_probability(reference, chosen) - _log_probability(reference, rejected)
            margin = _log_probability(policy, chosen) - _log_probability(policy, rejected) - before
            loss = -F.logsigmoid(0.1 * margin).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_a_loss_that_stands_still_is_found_beside_calls_without_a_loss(run_path: Path) -> None:
    """As of a model that acts between its updates; without calls for the same inputs no cause is certain."""
    acts = [Step(mode=Mode.EVAL, scalars={}) for _ in range(3)]
    steps = [each for step in training(120, loss=lambda n: 0.6931, noise=0.0) for each in (*acts, step)]
    (found,) = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("LossNotDecreasing")]).findings
    assert "stands still: 0.6931" in found.message
    assert found.causes[0] == "loss_ignores_weights"


@pytest.mark.parametrize(
    ("loss", "ratio"), [(0.0, 1e-3), (0.6931, 0.0)], ids=["a loss of zero", "weights that do not move"]
)
def test_other_losses_that_stay_do_not_stand_still(run_path: Path, loss: float, ratio: float) -> None:
    acts = [Step(mode=Mode.EVAL, scalars={}) for _ in range(3)]
    made = training(120, loss=lambda n: loss, noise=0.0, ratio=lambda n, i: ratio)
    steps = [each for step in made for each in (*acts, step)]
    assert not replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("LossNotDecreasing")]).findings
