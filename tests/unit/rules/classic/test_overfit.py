"""What Overfit compares: the same loss in training and evaluation, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from synthetic_steps import MODULES, training, with_evaluations
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Mode, RuleStatus
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

Losses = Callable[[int], Mapping[str, float]]
FALLING: Callable[[int], float] = lambda n: 2.0 * 0.99**n  # noqa: E731
RISING: Callable[[int], float] = lambda n: 1.0 if n < 60 else 1.0 + (n - 60) / 100  # noqa: E731


class TestOverfit(RuleSuite):
    rule = find_rule("Overfit")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return with_evaluations(training(400), lambda n: 0.8 if n < 100 else 0.8 + (n - 100) / 400)

    def healthy(self) -> Sequence[Step]:
        # A gap that stays, with some noise; the training loss goes on falling.
        return with_evaluations(training(800), lambda n: 0.3 + 2 * 0.97**n + 0.01 * (n % 3))


class TestOverfitInRealRuns(RealRuns):
    rule = "Overfit"
    cause = "overfitting"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        few, unseen = batch(96), batch(64)
        watch(model)
        for step in range(120):
            update(model, optimizer, *(few if sick else batch(64)))
            if step % 5 == 4:
                evaluate(model, *unseen)


def judged(path: Path, train: Losses, evaluate: Losses, captured: int = 1) -> tuple[list[Finding], RuleStatus]:
    """What Overfit says of 300 steps with an evaluation every twenty; parts are there at captured steps only."""
    steps = []
    for number in range(300):
        scalars = {k: v for k, v in train(number).items() if k == "loss" or number % captured == 0}
        steps.append(Step(scalars=scalars))
        if number % 20 == 19:
            steps.append(Step(scalars=dict(evaluate(number)), mode=Mode.EVAL))
    evaluation = replay(build_run(path, steps), [RuleSpec("Overfit")])
    return list(evaluation.findings), evaluation.statuses[0]


@pytest.mark.parametrize("captured", [1, 16])
def test_a_penalty_in_the_training_loss_hides_no_rise(run_path: Path, captured: int) -> None:
    # With the penalty the training loss lies above that of every evaluation.
    (finding,), _ = judged(
        run_path,
        lambda n: {"loss": FALLING(n) + 50.0, "loss/cross_entropy": FALLING(n)},
        lambda n: {"loss": RISING(n), "loss/cross_entropy": RISING(n)},
        captured,
    )
    assert finding.tensors == ("loss/cross_entropy",)
    assert "validation loss (cross_entropy)" in finding.message


def test_a_sum_over_the_batch_is_not_compared_with_a_mean(run_path: Path) -> None:
    # By its numbers the training loss is far below its start and far above the evaluation's.
    findings, _ = judged(
        run_path,
        lambda n: {"loss": 64 * FALLING(n), "loss/mse_loss": FALLING(n)},
        lambda n: {"loss": 0.5 + 0.001 * n, "loss/mse_loss": 2.1 * 0.995**n},
    )
    assert not findings


def test_different_losses_are_not_compared(run_path: Path) -> None:
    findings, status = judged(
        run_path,
        lambda n: {"loss": FALLING(n), "loss/cross_entropy": FALLING(n)},
        lambda n: {"loss": RISING(n), "loss/mse_loss": RISING(n)},
    )
    assert not findings
    assert status.reason == "training and evaluation compute different losses"


def test_losses_that_are_the_same_are_compared_at_every_step(run_path: Path) -> None:
    (finding,), _ = judged(
        run_path,
        lambda n: {"loss": FALLING(n), "loss/cross_entropy": FALLING(n)},
        lambda n: {"loss": RISING(n), "loss/cross_entropy": RISING(n)},
        captured=256,
    )
    assert finding.message.startswith("the validation loss is ")


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ({"loss": float("nan")}, "no evaluation had a finite loss"),
        ({}, "the loss of any of 15 evaluations was not seen"),
    ],
)
def test_evaluations_that_say_nothing_are_named_as_what_they_are(
    run_path: Path, losses: dict[str, float], reason: str
) -> None:
    findings, status = judged(run_path, lambda n: {"loss": FALLING(n)}, lambda n: losses)
    assert not findings
    assert status.reason.startswith(reason)
    assert "there was no evaluation" not in status.reason
