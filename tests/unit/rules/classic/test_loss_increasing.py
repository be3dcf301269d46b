"""LossIncreasing: a loss that diverges, rises from the start or rises again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier, fit
from synthetic_steps import MODULES, constant, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

DIVERGED_FOR_GOOD = training(40, loss=lambda n: 2.3 if n < 10 else 100.0)
RISES = training(160, loss=lambda n: 2.3 + 0.03 * n, noise=0.05)


class TestLossIncreasing(RuleSuite):
    rule = find_rule("LossIncreasing")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(600, loss=lambda n: 2.3 * 0.98**n if n < 200 else 1.5)

    def healthy(self) -> Sequence[Step]:
        # Falls, then stays at its noisy floor for long.
        return training(1000, noise=0.5, loss=lambda n: 2.3 * 0.98**n + 0.01)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return training(6, loss=lambda n: 2.3 * 10.0**n), DIVERGED_FOR_GOOD, RISES


class TestLossIncreasingInRealRuns(RealRuns):
    rule = "LossIncreasing"
    cause = "learning_rate_too_high"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(), watch, rate=10.0 if sick else 0.01, optimizer=torch.optim.Adam)


class TestAFlippedSignInRealRuns(RealRuns):
    rule = "LossIncreasing"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        for _ in range(40):
            inputs, labels = batch()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            (-loss if sick else loss).backward()
            optimizer.step()


def found(path: Path, steps: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(path, steps, modules=MODULES), [RuleSpec("LossIncreasing")]).findings)


def test_a_loss_that_stays_diverged_is_an_error(run_path: Path) -> None:
    assert Severity.ERROR in {finding.severity for finding in found(run_path, DIVERGED_FOR_GOOD)}


@pytest.mark.parametrize(
    ("ratio", "rate", "cause"),
    [(1e-3, 0.1, "loss_sign_flipped"), (0.1, 0.1, "learning_rate_too_high"), (1e-3, 50.0, "learning_rate_too_high")],
)
def test_updates_and_rate_tell_a_flipped_sign_from_a_high_rate(
    run_path: Path, ratio: float, rate: float, cause: str
) -> None:
    facts = {0: {"optimizer": {"type": "SGD", "groups": [{"lr": rate, "momentum": 0}]}}}
    steps = training(160, loss=lambda n: 2.3 + 0.03 * n, ratio=constant(ratio), rate=lambda n: rate, facts=facts)
    assert {finding.causes[0] for finding in found(run_path, steps)} == {cause}


def test_a_model_that_acts_between_its_updates_may_lose_what_it_has(run_path: Path) -> None:
    acts = Step(mode=Mode.EVAL)
    assert found(run_path, [each for step in RISES for each in (acts, step)]) == []


def test_an_overshoot_of_the_first_steps_is_silent(run_path: Path) -> None:
    assert found(run_path, training(120, loss=lambda n: 60.0 if 1 <= n <= 3 else 2.3 * 0.98**n, noise=0.05)) == []


@pytest.mark.parametrize(
    "losses",
    [
        # The first losses of a policy gradient are close to each other by chance, and have any sign and level.
        [-0.51, -0.5, 3.0, 1.2, -0.7, 2.4, 0.3, -1.9] + [0.4, -1.1, 2.2, -2.0] * 20,
        # A few steps of noise.
        [-0.5, 0.4] * 20 + [40.0] * 4 + [-0.5, 0.4] * 20,
    ],
)
def test_a_loss_of_any_sign_has_no_spread_at_first_and_few_noisy_steps(run_path: Path, losses: list[float]) -> None:
    assert found(run_path, [Step(scalars={"loss": loss}) for loss in losses]) == []


@pytest.mark.parametrize(("elements", "silent"), [((19, 46), True), ((32, 32), False), ((32, 9), False)])
def test_a_sum_over_episodes_has_no_level(run_path: Path, elements: tuple[int, int], silent: bool) -> None:
    steps = [Step(scalars={"loss": 100.0 if n < 40 else 4000.0 + n}) for n in range(200)]
    for at, count in zip((0, 8), elements, strict=True):
        total = {"operation": "sum", "shape": [], "of": ["unknown"], "elements": count}
        fact = {"terms": [{"coefficient": -1.0, "kind": "data", "operations": [total]}], "terms_count": 1}
        steps[at] = replace(steps[at], facts={"loss_graph": fact})
    findings = replay(build_run(run_path, steps), [RuleSpec("LossIncreasing"), RuleSpec("LossNotDecreasing")]).findings
    assert {each.rule for each in findings} == (set() if silent else {"LossIncreasing", "LossNotDecreasing"})


def test_a_loss_that_has_been_nan_for_long_is_no_loss_that_rises(run_path: Path) -> None:
    path = build_run(
        run_path, training(400, noise=0.2, loss=lambda n: 2.3 if n < 120 else float("nan")), modules=MODULES
    )
    evaluation = replay(path, [RuleSpec("LossIncreasing")])
    assert [(status.status.value, status.reason) for status in evaluation.statuses] == [("NoIssuesFound", "")]
