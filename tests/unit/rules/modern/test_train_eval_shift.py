"""TrainEvalShift: evaluations get other inputs than the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from sketches_of import given, steps
from watchglass.records import Mode
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "TrainEvalShift"


def classes(step: int, random: np.random.Generator) -> tuple[Any, Any]:
    return random.normal(size=(32, 4)), random.integers(0, 4, 32)


def run(train: Any, evaluation: Any, loss: float, evaluated: float) -> list[Step]:
    random, made = np.random.default_rng(0), []
    for number, step in enumerate(
        steps(40, classes, loss=lambda step: loss, inputs=lambda step, random: train(random))
    ):
        made.append(step)
        if number % 8 == 7:
            scalars = {"loss": evaluated, "loss/cross_entropy": evaluated}
            made.append(Step(scalars=scalars, facts=given(evaluation(random)), mode=Mode.EVAL, weight=32.0))
    return made


def plain(random: np.random.Generator) -> Any:
    return random.exponential(size=(32, 8))


class TestTrainEvalShift(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return run(plain, lambda random: (plain(random) - 1) / 0.25, 0.2, 0.3)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # Noise that hides what is there.
        return (run(lambda random: plain(random) + 4 * random.normal(size=(32, 8)), plain, 0.97 * math.log(4), 0.8),)

    def healthy(self) -> Sequence[Step]:
        return run(lambda random: plain(random) + 0.3 * random.normal(size=(32, 8)), plain, 0.9, 0.7)


class TestTrainEvalShiftInRealRuns(RealRuns):
    rule = "TrainEvalShift"
    cause = "evaluation_inputs_differ"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for step in range(40):
            update(model, optimizer, *batch())
            if step % 8 == 7:
                inputs, labels = batch()
                evaluate(model, inputs * 4 if sick else inputs, labels)
