"""InputDrift: inputs that are distributed otherwise than those of the training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from facts_of import watching
from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from sketches_of import given
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Mode, Severity, facts
from watchglass.rules import find_rule
from watchglass.rules.modern.input_rows import row_of, stability_index
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

Inputs = Callable[[np.random.Generator], Any]


def usual(random: np.random.Generator) -> Any:
    return random.normal(size=(64, 4))


def shifted(random: np.random.Generator, *, feature: int = 2, by: float = 1.0) -> Any:
    inputs = usual(random)
    inputs[:, feature] += by
    return inputs


def images(random: np.random.Generator, *, noise: float = 0.0) -> Any:
    return random.exponential(size=(4, 3, 8, 8)) + noise * random.normal(size=(4, 3, 8, 8))


def used(train: Inputs, later: Inputs, *, mode: Mode = Mode.PREDICT, evaluation: Inputs | None = None) -> list[Step]:
    """Twenty training steps, evaluations if there are any, and then ten steps of a mode."""
    random = np.random.default_rng(0)
    made = [Step(scalars={"loss": 1.0}, facts=given(train(random))) for _ in range(20)]
    if evaluation is not None:
        made += [Step(scalars={"loss": 1.0}, facts=given(evaluation(random)), mode=Mode.EVAL) for _ in range(5)]
    scalars = {"loss": 1.0} if mode is Mode.EVAL else {}
    return made + [Step(scalars=scalars, facts=given(later(random)), mode=mode) for _ in range(10)]


class TestInputDrift(RuleSuite):
    rule = find_rule("InputDrift")

    def sick(self) -> Sequence[Step]:
        return used(usual, shifted)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # Tables of evaluations; another distribution with the same moments.
        uniform: Inputs = lambda random: random.choice([-1.0, 1.0], size=(64, 4))  # noqa: E731
        return used(usual, shifted, mode=Mode.EVAL), used(usual, uniform)

    def healthy(self) -> Sequence[Step]:
        # Training inputs are augmented, and those of evaluations and predictions are not.
        return used(lambda random: images(random, noise=1.0), images, evaluation=images)


@pytest.mark.parametrize(("by", "found"), [(0.2, False), (0.4, False), (0.6, True)])
def test_a_shift_of_half_a_standard_deviation_is_drift(run_path: Path, by: float, found: bool) -> None:
    """The squared shift is the index of two normal distributions: 0.36 for a shift of 0.6."""
    run = build_run(run_path, used(usual, lambda random: shifted(random, by=by)))
    findings = replay(run, [RuleSpec("InputDrift")]).findings
    assert bool(findings) is found
    assert all("in feature 2" in finding.message and 0.2 < finding.value < 0.6 for finding in findings)


def test_augmented_training_inputs_are_an_info(run_path: Path) -> None:
    steps = used(lambda random: images(random, noise=2.0), images, mode=Mode.EVAL)
    findings = replay(build_run(run_path, steps), [RuleSpec("InputDrift")]).findings
    assert {finding.severity for finding in findings} == {Severity.INFO}


@pytest.mark.parametrize("drifts", [True, False])
def test_a_later_run_is_compared_with_a_training_run(run_path: Path, tmp_path: Path, drifts: bool) -> None:
    before, later = tmp_path / "before", run_path
    build_run(before, used(usual, usual, mode=Mode.EVAL))
    # Only evaluations, without a loss: a model that is used.
    random = np.random.default_rng(1)
    inputs = [shifted(random) if drifts else usual(random) for _ in range(8)]
    build_run(later, [Step(facts=given(each), mode=Mode.EVAL) for each in inputs])
    evaluation = replay(later, [RuleSpec("InputDrift", {"other_run": str(before)})])
    assert bool(evaluation.findings) is drifts
    assert all(f"drifted from those of {before}" in finding.message for finding in evaluation.findings)
    assert evaluation.statuses[0].reason == ""


@pytest.mark.parametrize("by", [0.0, 1.0])
@pytest.mark.parametrize("train_again", [False, True])
def test_evaluations_without_a_loss_after_training_are_predictions(
    run_path: Path, by: float, train_again: bool
) -> None:
    """Those between training steps belong to an agent that acts, or to a generative model."""
    random = np.random.default_rng(2)
    train = [Step(scalars={"loss": 1.0}, facts=given(usual(random))) for _ in range(20)]
    predict = [Step(facts=given(shifted(random, by=by)), mode=Mode.EVAL) for _ in range(8)]
    run = build_run(run_path, train + predict + (train[:1] + predict if train_again else []))
    findings = replay(run, [RuleSpec("InputDrift")]).findings
    assert bool(findings) is (by > 0 and not train_again)
    assert all("EVAL steps without a loss, after training, have drifted" in each.message for each in findings)
    assert {each.severity for each in findings} <= {Severity.WARNING}


def test_predictions_of_a_pytorch_model_are_judged(run_path: Path) -> None:
    model = classifier(depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watching(model, run_path, facts=("input_sketch",), modes={"eval": {"save_interval": 1}}):
        for _ in range(20):
            update(model, optimizer, *batch())
        model.eval()
        with torch.inference_mode():
            for _ in range(8):
                model(batch()[0] + 2 * torch.eye(16)[9])
    (finding,) = replay(run_path, [RuleSpec("InputDrift")]).findings
    assert "without a loss, after training, have drifted from training in feature 9" in finding.message


def test_a_run_that_only_trains_is_not_judged(run_path: Path) -> None:
    steps = [Step(scalars={"loss": 1.0}, facts=given(usual(np.random.default_rng(step)))) for step in range(9)]
    (status,) = replay(build_run(run_path, steps), [RuleSpec("InputDrift")]).statuses
    assert status.reason.startswith("too few different inputs")


def test_the_index_is_that_of_its_definition() -> None:
    """Of a uniform distribution and that of its squares, to a tenth: between quantiles a sketch knows no more."""
    values = np.linspace(0, 1, 4001)
    before, now = ([row] for row in (_row(values), _row(values**2)))
    bounds = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])
    p, q = np.diff([0, *bounds, 1]), np.diff([0, *np.sqrt(bounds), 1])
    assert stability_index(before, before) == 0
    assert stability_index(before, now) == pytest.approx(float(((q - p) * np.log(q / p)).sum()), rel=0.1)


def _row(values: Any) -> list[float]:
    sketch = facts.InputSketch.from_data(given(values)["input_sketch"])
    assert sketch is not None
    row = row_of(sketch)
    assert row is not None
    return row


class TestInputDriftInRealRuns(RealRuns):
    rule = "InputDrift"
    cause = "inputs_drifted"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A feature that the classes do not depend on has another offset in evaluations."""
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for step in range(48):
            update(model, optimizer, *batch())
            if step % 6 == 5:
                inputs, labels = batch()
                evaluate(model, inputs + 2 * torch.eye(16)[9] if sick else inputs, labels)
