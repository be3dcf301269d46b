"""SchedulerMisuse: schedules that are stepped at the wrong time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.optim import lr_scheduler

from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def calls(*names: str, kind: str = "StepLR") -> dict[int, dict[str, dict[str, object]]]:
    """The record of one order of calls."""
    order = {"calls": [[name, 1] for name in names], "times": 1}
    scheduler = {"type": kind, "optimizer": "optimizer", "observed": True, "stepped": True}
    objects = {"optimizer": {"type": "SGD"}, "scheduler": scheduler}
    return {1: {"calls": {"orders": [order], "rounds": 1, "objects": objects, "processes": 1}}}


PER_BATCH = calls("backward", "optimizer.step", "scheduler.step")
WITHOUT_SCHEDULER = {
    1: {"calls": {"orders": [], "rounds": 1, "objects": {"optimizer": {"type": "SGD"}}, "processes": 1}}
}


class TestSchedulerMisuse(RuleSuite):
    rule = find_rule("SchedulerMisuse")

    def sick(self) -> Sequence[Step]:
        return training(400, rate=lambda n: 0.1 * 0.7**n, facts=PER_BATCH)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        cosine = calls("backward", "optimizer.step", "scheduler.step", kind="CosineAnnealingLR")
        twice = calls("backward", "optimizer.step", "scheduler.step", "scheduler.step")
        of_keras = {0: {"optimizer": {"type": "Adam", "groups": [{"lr": None, "schedule": "ExponentialDecay"}]}}}
        return [
            training(400, rate=lambda n: 0.1 * 0.7**n, facts=of_keras),
            training(60, rate=lambda n: 0.1 * abs((n % 20) / 10 - 1), facts=cosine),
            training(30, facts=twice),
        ]

    def healthy(self) -> Sequence[Step]:
        # A warm-up from zero, then restarts.
        return training(400, rate=lambda n: 0.1 * (n / 20 if n < 20 else 1 - (n % 40) / 40), facts=PER_BATCH)


class TestSchedulerMisuseInRealRuns(RealRuns):
    rule = "SchedulerMisuse"
    cause = "scheduler_misused"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A schedule of epochs; the twin steps it per epoch."""
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        watch(model)
        scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
        for number in range(120):
            update(model, optimizer, *batch())
            if sick or number % 40 == 39:
                scheduler.step()
            if number % 40 == 39:
                evaluate(model, *batch())


@pytest.mark.parametrize(
    ("facts", "status"), [({}, Status.NO_ISSUES_FOUND), (WITHOUT_SCHEDULER, Status.NOT_APPLICABLE)]
)
def test_calls_without_a_scheduler_show_that_there_is_none(
    run_path: Path, facts: dict[int, dict[str, dict[str, object]]], status: Status
) -> None:
    (found,) = replay(build_run(run_path, training(40, facts=facts)), [RuleSpec("SchedulerMisuse")]).statuses
    assert found.status is status
    assert (found.reason == "no learning-rate scheduler was seen") == (status is Status.NOT_APPLICABLE)
