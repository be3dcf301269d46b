"""TrainEvalMode: modules in the wrong mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, evaluate, update
from watchglass import Mode
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def flags(training: bool, sensitive: dict[str, list[int]]) -> dict[str, dict[str, object]]:
    return {"training_flags": {"training": training, "sensitive": sensitive, "frozen_parameters": 0}}


def run(
    evaluation: dict[str, dict[str, object]], training: dict[str, dict[str, object]], parts: int = 3, length: int = 10
) -> list[Step]:
    """Training steps with an evaluation after each part."""
    steps = []
    for part in range(parts):
        steps += [Step(scalars={"loss": 1.0}, facts=training if part + n == 0 else ()) for n in range(length)]
        facts = evaluation if part == 0 else ()
        steps.append(Step(scalars={"loss": 1.0}, facts=facts, mode=Mode.EVAL))
    return steps


TRAINING = flags(True, {"Dropout": [1, 0], "BatchNorm1d": [1, 0]})
EVALUATION = flags(False, {"Dropout": [0, 1], "BatchNorm1d": [0, 1]})


class TestTrainEvalMode(RuleSuite):
    rule = find_rule("TrainEvalMode")

    def sick(self) -> Sequence[Step]:
        return run(TRAINING, TRAINING)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # Short epochs of a small data set.
        return [run(EVALUATION, EVALUATION), run(TRAINING, TRAINING, parts=8, length=4)]

    def healthy(self) -> Sequence[Step]:
        # Monte Carlo dropout, and frozen batch normalisation.
        return run(flags(False, {"Dropout": [1, 0], "BatchNorm1d": [0, 1]}),
                   flags(True, {"Dropout": [1, 0], "BatchNorm1d": [0, 1]}))  # fmt: skip


def test_the_mode_of_a_frozen_encoder_is_as_intended(run_path: Path) -> None:
    frozen = {"training_flags": {**EVALUATION["training_flags"], "gradients": False}}
    for facts, found in ((frozen, 0), (EVALUATION, 1)):
        steps = [Step(scalars={"loss": 1.0}, facts=facts if n == 0 else ()) for n in range(20)]
        verdict = replay(build_run(run_path / str(found), steps), [RuleSpec("TrainEvalMode")])
        assert len(verdict.findings) == found


def test_a_model_with_loaded_running_statistics_may_be_tuned_in_evaluation_mode(run_path: Path) -> None:
    for initial, found in ((False, 0), (True, 1)):
        statistics = {"running_statistics": {"modules": [{"module": "norm", "initial": initial}]}}
        facts = EVALUATION | statistics
        steps = [Step(scalars={"loss": 1.0}, facts=facts if n == 0 else ()) for n in range(20)]
        verdict = replay(build_run(run_path / str(found), steps), [RuleSpec("TrainEvalMode")])
        assert len(verdict.findings) == found


def test_a_forward_at_every_step_is_no_evaluation(run_path: Path) -> None:
    found = replay(build_run(run_path, run(TRAINING, TRAINING, parts=40, length=1)), [RuleSpec("TrainEvalMode")])
    assert not found.findings


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


class TestEvaluationInTrainingMode(RealRuns):
    rule = "TrainEvalMode"
    cause = "evaluated_in_training_mode"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for number in range(40):
            update(model, optimizer, *batch())
            if number % 10 == 9:
                model.train(sick)
                with torch.no_grad():
                    inputs, labels = batch()
                    nn.functional.cross_entropy(model(inputs), labels)
                model.train()


class TestTrainingInEvaluationMode(RealRuns):
    rule = "TrainEvalMode"
    cause = "trained_in_evaluation_mode"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin keeps only its batch normalisation in evaluation mode, with statistics of such data."""
        model = network()
        for _ in range(20):
            model(batch()[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for number in range(40):
            model[1].eval()
            update(model, optimizer, *batch())
            if number == 9:
                evaluate(model, *batch())
                model.train(not sick)
