"""OptimizerNeverSteps: backward runs, and nothing is updated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from real_runs import RealRuns, Watch, batch, classifier
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def run(orders: Sequence[str], reason: str = "no optimizer stepped") -> list[Step]:
    """One step of a process whose backwards were followed by no update that was seen."""
    calls = {"orders": [{"calls": [[name, 1] for name in orders], "times": 1}], "rounds": 1, "others": 0}
    facts = {
        "calls": {**calls, "objects": {"optimizer": {"type": "SGD"}}},
        "unstepped_backwards": {"backwards": 40, "reason": reason},
    }
    return [Step(scalars={"loss": 1.0}, facts=facts)]


class TestOptimizerNeverSteps(RuleSuite):
    rule = find_rule("OptimizerNeverSteps")

    def sick(self) -> Sequence[Step]:
        return run(["optimizer.zero_grad", "backward"])

    def healthy(self) -> Sequence[Step]:
        # An image is optimized through a model.
        return run(["optimizer.zero_grad", "backward", "optimizer.step"])


def pair(*orders: str, shared: int = 0) -> list[Step]:
    """Twenty steps with two optimizers."""
    calls = {"orders": [{"calls": [[name, 1] for name in orders], "times": 19}], "rounds": 19, "others": 0}
    objects = {"optimizer": {"type": "Adam"}, "optimizer_2": {"type": "SGD"}}
    facts = {"calls": {**calls, "objects": objects}, "membership": {"twice": {"count": shared, "names": []}}}
    return [Step(scalars={"loss": 1.0}, facts=facts if n == 2 else {}) for n in range(20)]


BACKWARD, CLEARED = "backward", ("optimizer.zero_grad", "optimizer_2.zero_grad")


@pytest.mark.parametrize(
    ("orders", "found"),
    [
        (
            (BACKWARD, "optimizer_2.step", *CLEARED),
            ["optimizer (Adam) clears gradients in each round and never stepped"],
        ),
        ((BACKWARD, "optimizer.step", "optimizer_2.step", *CLEARED), []),
        # Phases: the first optimizer is done, or has not begun.
        ((BACKWARD, "optimizer_2.step", "optimizer_2.zero_grad"), []),
    ],
)
def test_one_of_several_optimizers(run_path: Path, orders: tuple[str, ...], found: list[str]) -> None:
    findings = replay(build_run(run_path, pair(*orders)), [RuleSpec("OptimizerNeverSteps")]).findings
    assert [finding.message.partition(" in 20 steps")[0] for finding in findings] == found


def test_a_wrapper_has_the_parameters_of_the_optimizer_that_steps_for_it(run_path: Path) -> None:
    run = build_run(run_path, pair(BACKWARD, "optimizer_2.step", *CLEARED, shared=6))
    assert replay(run, [RuleSpec("OptimizerNeverSteps")]).findings == ()


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
