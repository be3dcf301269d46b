"""OptimizerNeverSteps: backward runs, and nothing is updated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def run(orders: Sequence[str], reason: str = "no optimizer stepped") -> list[Step]:
    """One step of a process whose backwards were followed by no update that was seen."""
    calls = {"orders": [{"calls": [[name, 1] for name in orders], "times": 1}], "rounds": 1, "others": 0}
    facts = {
        "calls": {**calls, "objects": {"optimizer": {"type": "SGD"}}},
        "unstepped_backwards": {"backwards": 40, "reason": reason},
    }
    return [Step(scalars={"loss": 1.0}, facts=facts)]


def several(*, looks: int, stepped: int | None = None) -> list[Step]:
    """A run in which readings of the graph find a weight of an optimizer that steps at some step, or never."""
    row = {
        "owner": "Encoder", "name": "fc.weight", "shape": [32, 16], "kind": "linear", "training": True,
        "optimizer": "optimizer_2", "optimizer_type": "Adam", "sampled": 512, "min": -0.2, "max": 0.2, "std": 0.1,
    }  # fmt: skip
    made = [Step(scalars={"loss": 1.0}) for _ in range(30)]
    for n in range(looks):
        fact = {"backward": 1, "count": 1, "parameters": [{**row, "looks": n + 1}]}
        made[n] = Step(scalars={"loss": 1.0}, facts={"unheld_parameters": fact})
    if stepped is not None:
        fact = {"backward": 0, "count": 0, "parameters": [], "stepped": "optimizer_2"}
        made[stepped] = Step(scalars={"loss": 1.0}, facts={"unheld_parameters": fact})
    return made


def stopped() -> list[Step]:
    """Two updates, and then backwards without one."""
    last = {"backwards": 40, "reason": "no optimizer stepped after any of them", "steps": 2}
    return [*[Step(scalars={"loss": 1.0})] * 2, Step(scalars={"loss": 1.0}, facts={"unstepped_backwards": last})]


def never_called(*, training: bool) -> list[Step]:
    """Backwards through a model whose optimizer the script never calls."""
    report = {"backwards": 40, "reason": "no optimizer stepped", **({"optimizer": "SGD"} if training else {})}
    return [Step(scalars={"loss": 1.0}, facts={"unstepped_backwards": report})]


class TestOptimizerNeverSteps(RuleSuite):
    rule = find_rule("OptimizerNeverSteps")

    def sick(self) -> Sequence[Step]:
        return run(["optimizer.zero_grad", "backward"])

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (several(looks=3), several(looks=2), stopped(), never_called(training=True))

    def test_gradients_of_a_model_in_evaluation_mode_need_no_update(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path, never_called(training=False))) == []

    def test_an_optimizer_that_steps_later_is_not_reported(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path, several(looks=3, stepped=25))) == []

    def test_weights_that_change_are_not_reported(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path, several(looks=1))) == []

    def healthy(self) -> Sequence[Step]:
        # An image is optimized through a model.
        return run(["optimizer.zero_grad", "backward", "optimizer.step"])


class TestOptimizerNeverStepsInRealRuns(RealRuns):
    rule = "OptimizerNeverSteps"
    cause = "optimizer_never_steps"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin updates its parameters itself."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            with torch.no_grad():
                for parameter in model.parameters() if not sick else ():
                    parameter -= 0.05 * parameter.grad


class TestOneOfSeveralOptimizersNeverStepsInRealRuns(RealRuns):
    rule = "OptimizerNeverSteps"
    cause = "optimizer_never_steps"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Two optimizers of one model; the twin steps both."""
        model = classifier()
        first, second = (torch.optim.SGD(part.parameters(), lr=0.05) for part in (model[:2], model[2:]))
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            if not sick:
                first.step()
            second.step()


class TestConditionOfAStepThatNeverHoldsInRealRuns(RealRuns):
    rule = "OptimizerNeverSteps"
    cause = "optimizer_never_steps"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Micro-batches are added up, and the sum is never complete."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for number in range(40):
            inputs, labels = batch()
            F.cross_entropy(model(inputs), labels).backward()
            if number % 4 == (4 if sick else 3):
                optimizer.step()
                optimizer.zero_grad()


class TestOptimizerStepsOnlyOnceInRealRuns(RealRuns):
    rule = "OptimizerNeverSteps"
    cause = "optimizer_never_steps"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A condition that only the first step meets; the twin adds up two micro-batches for each update."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for number in range(40):
            inputs, labels = batch()
            F.cross_entropy(model(inputs), labels).backward()
            if number % (1000 if sick else 2) == 0:
                optimizer.step()
                optimizer.zero_grad()
