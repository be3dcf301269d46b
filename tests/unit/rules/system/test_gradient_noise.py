"""GradientNoise: a gradient that is mostly noise of its batch, or hardly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def course(
    scale: float, samples: int = 8, *, captures: int = 40, spread: float = 0.5, falls: float = 2.0, **fact: Any
) -> list[Step]:
    """A run whose noise scale is this; its signal differs from capture to capture, and its loss falls by so much."""

    def noise(capture: int) -> dict[str, Any]:
        signal = 1.0 + (spread if capture % 2 else -spread)
        of_batch = {"batch": samples, "samples": samples, "micro_batches": 1, "ranks": 1, "layers": ["stem.weight"]}
        return {"gradient_noise": {**of_batch, "noise": scale, "signal": signal, **fact}}

    steps = 8 * captures
    return training(
        steps, facts={8 * capture: noise(capture) for capture in range(captures)},
        loss=lambda step: 3.0 - falls * step / steps + 0.1 * (step % 3),
    )  # fmt: skip


def found(path: Path, run: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("GradientNoise")]).findings)


class TestGradientNoise(RuleSuite):
    rule = find_rule("GradientNoise")
    severity = Severity.INFO

    def sick(self) -> Sequence[Step]:
        return course(640.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (course(640.0, captures=12), course(2.0), course(640.0, spread=3.0))

    def healthy(self) -> Sequence[Step]:
        # Between the limits; a loss that falls no more, where noise always dominates.
        return course(16.0)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            course(640.0),
            "from step 0 to 248 the gradient of an update on 8 samples is mostly noise: its noise scale is about 640 "
            "samples, 80 times the batch; up to about that size a larger batch needs nearly proportionally fewer "
            "updates, twice the batch about 51 % of them",
        ),
        (
            course(640.0, spread=3.0),
            "from step 0 to 248 the gradient of an update on 8 samples is mostly noise: its noise scale is at least "
            "310 samples, 39 times the batch; up to about that size a larger batch needs nearly proportionally fewer "
            "updates, twice the batch at most 51 % of them",
        ),
        (
            course(2.0),
            "from step 64 to 312 the gradient of an update on 8 samples has little noise: its noise scale is at most 2 "
            "samples, 0.3 times the batch, so a larger batch needs almost as many updates, twice the batch at least "
            "88 % of them",
        ),
        (
            course(640.0, micro_batches=4, ranks=2),
            "of an update on 64 samples is mostly noise: its noise scale is about 640 samples, 10 times the batch",
        ),
    ],
)  # fmt: skip
def test_the_message_has_samples_batches_and_updates(run_path: Path, run: Sequence[Step], words: str) -> None:
    (finding,) = found(run_path, run)
    assert words in finding.message
    assert finding.severity is Severity.INFO
    assert finding.causes == (), "noise alone says nothing of the machine"


@pytest.mark.parametrize(
    "run",
    [
        course(640.0, falls=0.0),  # converged
        course(640.0, falls=-1.0),
        course(640.0, spread=200.0),  # the true gradient does not stand out at all
        course(24.0),
        course(640.0, captures=7),
        course(6.0, spread=3.0),  # below the batch, but not certainly
    ],
)
def test_without_footing_there_is_no_finding(run_path: Path, run: Sequence[Step]) -> None:
    assert found(run_path, run) == []


def test_one_batch_again_and_again_has_no_larger_one(run_path: Path) -> None:
    run = course(640.0)
    facts = {"batch": {"hashes": ["00112233"], "shapes": {"0": [8, 4]}}}
    run[0] = Step(scalars=run[0].scalars, facts={**dict(run[0].facts), **facts})
    evaluation = replay(build_run(run_path, run), [RuleSpec("GradientNoise")])
    assert evaluation.findings == ()
    assert evaluation.statuses[0].reason == "every step that was seen has the same batch"


def test_a_short_run_is_not_judged(run_path: Path) -> None:
    (status,) = replay(build_run(run_path, course(640.0, captures=3)), [RuleSpec("GradientNoise")]).statuses
    assert status.status is Status.NOT_APPLICABLE
    assert status.reason.startswith("the run has 3 steps with gradients of the samples of a batch; 8 are needed")


class TestGradientNoiseInRealRuns(RealRuns):
    rule = "GradientNoise"
    severity = Severity.INFO

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        watch(model)
        for _ in range(150):
            inputs, labels = batch(8 if sick else 256)
            wrong = torch.rand(len(labels)) < 0.5
            update(model, optimizer, inputs, torch.where(wrong, torch.randint(0, 4, labels.shape), labels))
