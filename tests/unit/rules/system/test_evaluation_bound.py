"""EvaluationBound: most of the time goes to evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phased_steps import phased
from real_runs import RealRuns, Watch, batch, classifier, update
from timed_layers import Takes
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Mode, Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

TRAIN = phased(forward_s=0.04, backward_s=0.06)
#: A batch of an evaluation; the builder gives it a loss.
EVALUATED = phased(Mode.EVAL, data_s=0.02, forward_s=0.08)


def unlabelled(training: bool, step: Step = EVALUATED) -> Step:
    """The same without a loss, and with the flag of the model."""
    flags = {"training_flags": {"training": training, "sensitive": {}, "gradients": False}}
    return replace(step, scalars={}, facts=flags)


def steps(epochs: int, every: int, batches: int, batch: Step = EVALUATED, device: str = "cpu") -> list[Step]:
    """Epochs of ``every`` training steps of 100 ms, and as many batches of an evaluation of 100 ms after each."""
    run = [*[TRAIN] * every, *[batch] * batches] * epochs
    return [replace(run[0], facts={"model": {"devices": [device]}}), *run[1:], TRAIN]


def found(path: Path, run: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("EvaluationBound")]).findings)


class TestEvaluationBound(RuleSuite):
    rule = find_rule("EvaluationBound")

    def sick(self) -> Sequence[Step]:
        return steps(20, every=5, batches=15)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # After each epoch, and a metric of one batch in each step, with the model in evaluation mode.
        return steps(6, every=40, batches=50), steps(80, every=1, batches=2, batch=unlabelled(training=False))

    def healthy(self) -> Sequence[Step]:
        # A look at the validation set before the training, usual evaluations, one that takes long, and a run of an
        # agent whose steps in its environment call the model.
        usual = steps(8, every=40, batches=30)
        agent = steps(6, every=40, batches=80, batch=unlabelled(training=True))
        return [*[EVALUATED] * 200, *usual, *[EVALUATED] * 200, *usual, *agent]


def test_the_message_has_shares_and_gains(run_path: Path) -> None:
    (finding,) = found(run_path, steps(20, every=5, batches=15))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "75 % of the time goes to evaluations: 1.5 s after every 5 training steps, which take 0.5 s; without them the "
        "run is at most 4.0 times as fast, with half as many 1.6 times"
    )
    assert finding.evidence["gain"] == pytest.approx(4.0)
    assert finding.causes[0] == "evaluations_too_often"
    assert finding.step == 70, "two windows of 35 steps"


def test_a_second_forward_in_each_step_is_told_from_an_evaluation(run_path: Path) -> None:
    (finding,) = found(run_path, steps(80, every=1, batches=2, batch=unlabelled(training=True)))
    assert (finding.severity, finding.symptoms) == (Severity.INFO, ())
    assert finding.message.startswith(
        "67 % of the time goes to calls of the model without an update: 0.2 s after each training step, which takes "
        "0.1 s;"
    )


@pytest.mark.parametrize(("batches", "count"), [(39, 0), (40, 1)])
def test_the_limit_is_a_share_of_the_time(run_path: Path, batches: int, count: int) -> None:
    assert len(found(run_path, steps(6, every=40, batches=batches))) == count


def test_both_windows_count(run_path: Path) -> None:
    long, short = steps(2, every=40, batches=120)[:-1], steps(2, every=40, batches=10)[:-1]
    assert found(run_path, [*long, *short, *long, *short, TRAIN]) == []


@pytest.mark.parametrize(("batches", "count"), [(3, 0), (4, 1)])
def test_a_single_batch_may_wait_for_the_device(run_path: Path, batches: int, count: int) -> None:
    assert len(found(run_path, steps(80, every=1, batches=batches, device="cuda"))) == count


@pytest.mark.parametrize(
    ("epochs", "reason"),
    [(3, "3 evaluations came between training steps; 4 are needed"), (4, "")],
)  # fmt: skip
def test_few_evaluations_are_not_judged(run_path: Path, epochs: int, reason: str) -> None:
    evaluation = replay(build_run(run_path, steps(epochs, every=40, batches=10)), [RuleSpec("EvaluationBound")])
    (status,) = evaluation.statuses
    assert (status.status, status.reason) == (Status.NOT_APPLICABLE if reason else Status.NO_ISSUES_FOUND, reason)


class TestEvaluationBoundInRealRuns(RealRuns):
    rule = "EvaluationBound"
    cause = "evaluations_too_often"
    profiler = True
    reads_more = "no two runs take the same times"

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        super().record(run, {**capture, "save_interval": 32}, sick=sick)

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier().append(Takes(self.clock, 0.001))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        for step in range(96):
            update(model, optimizer, *batch())
            if step % 8 == 7:
                model.eval()
                with torch.no_grad():
                    for _ in range(4):
                        inputs, labels = batch()
                        nn.functional.cross_entropy(model(inputs), labels)
                        self.clock.advance(0.02 if sick else 0.001)  # a data set that is far too large for so often
                model.train()
