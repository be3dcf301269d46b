"""Rules in an attempt that goes on with a training run: what has come to rest there is no fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from synthetic_steps import MODULES, constant, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity, Status
from watchglass.testing import RunBuilder, Step

RESUMED = {"start_step": 5000, "source": "optimizer"}


def found(run: Path, rule: str, steps: Sequence[Step], resumed: dict[str, Any] | None, before: int = 3) -> list[str]:
    """Warnings and errors of the second attempt, as ``step: message``."""
    for fact, part in ((None, training(before)), (resumed, steps)):
        with RunBuilder(run, modules=MODULES, alive=False, resumed=fact) as builder:
            for number, step in enumerate(part):
                builder.step(step, flush=number % 16 == 15)
            builder.flush()
    evaluation = replay(run, [RuleSpec(rule)])
    return [
        f"{finding.step}: {finding.message}"
        for finding in evaluation.findings
        if finding.attempt == 1 and finding.severity is not Severity.INFO
    ]


FLAT = training(400, loss=lambda step: 0.01)
SMALL = training(600, ratio=constant(1e-7), loss=lambda step: 0.01)
RESTING = training(100, ratio=lambda step, layer: 0.0 if layer == 0 else 1e-3)


@pytest.mark.parametrize(
    ("rule", "steps"), [("LossNotDecreasing", FLAT), ("WeightUpdateRatio", SMALL), ("UnchangedTensor", RESTING)]
)
def test_a_training_run_that_was_resumed_at_its_end_is_healthy(rule: str, steps: list[Step], tmp_path: Path) -> None:
    assert found(tmp_path / "restarted", rule, steps, {"start_step": None, "source": "unknown"})
    assert found(tmp_path / "resumed", rule, steps, RESUMED) == []


def test_a_multiple_of_a_low_loss_is_no_divergence(tmp_path: Path) -> None:
    steps = training(60, loss=lambda step: 0.01 if step < 30 else 0.06)
    assert found(tmp_path / "restarted", "LossIncreasing", steps, None)
    assert found(tmp_path / "resumed", "LossIncreasing", steps, RESUMED) == []


def test_findings_of_a_resumed_attempt_name_the_steps_of_the_training(tmp_path: Path) -> None:
    steps = training(40, loss=lambda step: 2.3 if step < 20 else 230.0)
    messages = found(tmp_path / "run", "LossIncreasing", steps, RESUMED)
    assert messages
    assert all(5020 <= int(message.partition(":")[0]) < 5040 for message in messages)
    assert "up to step 502" in messages[0]


def test_the_distance_to_an_earlier_attempt_starves_no_rule(tmp_path: Path) -> None:
    found(tmp_path / "run", "DeadRelu", training(1), RESUMED, before=40)
    (status,) = replay(tmp_path / "run", [RuleSpec("DeadRelu")]).statuses
    assert (status.status, status.reason) == (Status.NO_ISSUES_FOUND, "")


def test_an_attempt_that_was_resumed_has_no_initial_weights(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run", modules=MODULES, resumed=RESUMED) as builder:
        for step in training(20):
            builder.step(step)
        builder.leave()
    (status,) = replay(tmp_path / "run", [RuleSpec("PoorWeightInitialization")]).statuses
    assert (status.status, "this attempt continues a run" in status.reason) == (Status.NOT_APPLICABLE, True)
