"""OptimizerNeverSteps: backward runs, and nothing is updated."""

from __future__ import annotations

from collections.abc import Sequence

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


class TestOptimizerNeverSteps(RuleSuite):
    rule = find_rule("OptimizerNeverSteps")

    def sick(self) -> Sequence[Step]:
        return run(["optimizer.zero_grad", "backward"])

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
