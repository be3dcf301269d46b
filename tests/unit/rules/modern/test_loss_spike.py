"""LossSpike: jumps of the loss that recover, repeat, or last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from facts_of import watching
from real_runs import RealRuns, Watch, batch, classifier, update
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Fact, Severity
from watchglass.rules import default_rules, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite, shown


def losses(value: Callable[[int], float], steps: int = 300) -> list[Step]:
    """A loss with noise of 3 %, plus ``value`` of the step."""
    noise = 1 + 0.03 * np.random.default_rng(3).normal(size=steps)
    return [Step(scalars={"loss": 3.0 * noise[step] + value(step)}) for step in range(steps)]


class TestLossSpike(RuleSuite):
    rule = find_rule("LossSpike")

    def sick(self) -> Sequence[Step]:
        return losses(lambda step: 3.0 * (step >= 200))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # Again and again; and a loss that may be negative.
        often = losses(lambda step: 4.0 * (step > 80 and step % 40 == 0))
        below = [Step(scalars={"loss": step.scalars["loss"] - 3.0}) for step in self.sick()]
        return (often, below)

    def healthy(self) -> Sequence[Step]:
        return losses(lambda step: 4.0 * (step in (100, 101, 220)))


@pytest.mark.parametrize(("steps", "infos"), [((150,), 1), ((150, 151, 152), 3), ((20,), 0)])
def test_single_spikes_are_noted(run_path: Path, steps: tuple[int, ...], infos: int) -> None:
    """One that comes before there is enough to compare with is none."""
    run = TestLossSpike().build(run_path, losses(lambda step: 4.0 * (step in steps)))
    findings = replay(run, [RuleSpec("LossSpike")]).findings
    assert [finding.severity for finding in findings] == [Severity.INFO] * bool(infos)
    assert sum(finding.count for finding in findings) == infos


def test_a_spike_shows_while_the_loss_falls(run_path: Path) -> None:
    """The spread of the whole window is that of its fall, from 8 to 3."""
    steps = losses(lambda step: 5.0 * float(np.exp(-step / 20)) + 5.0 * (step == 100), steps=130)
    (finding,) = replay(TestLossSpike().build(run_path, steps), [RuleSpec("LossSpike")]).findings
    assert (finding.step, finding.last_step) == (100, 100)


def test_a_new_level_is_a_spike_only_until_it_is_usual(run_path: Path) -> None:
    run = TestLossSpike().build(run_path, losses(lambda step: 3.0 * (step >= 100), steps=600))
    findings = replay(run, [RuleSpec("LossSpike")]).findings
    assert max(finding.last_step for finding in findings) < 100 + 128


def batch_fact(name: str, varied: int = 500) -> dict[str, dict[str, Any]]:
    return {"batch": {"hashes": [name], "varied": varied, "shapes": {"0": [8, 64]}, "sampled": 512, "elements": 512}}


@pytest.mark.parametrize(
    ("facts", "ends"),
    [
        (
            {120: batch_fact("aa"), 160: batch_fact("aa")},
            ("hash aa", "hash aa, is the same as at the spike of step 120"),
        ),
        ({120: batch_fact("aa"), 160: batch_fact("bb")}, ("hash aa", "hash bb")),
        ({160: batch_fact("aa")}, ("before", "hash aa")),
        # Batches of equal elements are alike without being the same.
        ({120: batch_fact("aa", varied=0), 160: batch_fact("aa", varied=0)}, ("before", "before")),
    ],
)
def test_the_batch_of_a_spike_is_named(run_path: Path, facts: dict[int, Any], ends: tuple[str, str]) -> None:
    steps = losses(lambda step: 4.0 * (step in (120, 160)), steps=200)
    steps = [replace(step, facts=facts.get(number, {})) for number, step in enumerate(steps)]
    found, _ = shown(TestLossSpike().make, TestLossSpike().build(run_path, steps))
    assert [finding.step for finding in found] == [120, 160]
    assert all(finding.message.endswith(end) for finding, end in zip(found, ends, strict=True))


def with_loader(iterations: Callable[[int], int], *, sampler: str = "RandomSampler", of_step: int = 1) -> list[Step]:
    """A spike at step 123, which is not captured, in epochs of 20 batches of 8."""
    loader = {"loader": "loader", "batches": 20, "batch_size": 8, "sampler": sampler}
    steps = losses(lambda step: 4.0 * (step == 123), steps=200)
    for step in range(0, 200, 10):
        facts = [Fact("batch", 0, "test", {**batch_fact("aa")["batch"], "iterations": {"loader": iterations(step)}})]
        facts = facts * of_step + [Fact("data_loader", 0, "test", loader)] * (step == 0)
        steps[step] = replace(steps[step], facts=facts)
    return steps


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        (
            with_loader(lambda step: step // 20 + 1),
            "; if each step takes one batch, its batch is number 3 of epoch 6 of the data loader (from 0)",
        ),
        (
            with_loader(lambda step: step // 20 + 1, sampler="SequentialSampler"),
            "number 3 of epoch 6 of the data loader (from 0), which begins with sample 24 of the data set",
        ),
        # Epochs that end early, and two batches for each step.
        (with_loader(lambda step: step // 15 + 1), "losses before"),
        (with_loader(lambda step: step // 20 + 1, of_step=2), "losses before"),
    ],
)
def test_the_place_of_a_batch_is_given_without_a_capture(run_path: Path, steps: list[Step], end: str) -> None:
    (finding,) = replay(TestLossSpike().build(run_path, steps), [RuleSpec("LossSpike")]).findings
    assert finding.message.endswith(end)


def test_the_place_is_that_of_the_damaged_samples(run_path: Path) -> None:
    """The data are in order, but for one batch, whose targets are far too large."""
    inputs = torch.randn(160, 16)
    targets = inputs[:, :1] + 0.5 * torch.randn(160, 1)
    targets[104:112] += 20
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(model, run_path, facts=("batch", "data_loader"), save_interval=10):
        for _ in range(6):
            for samples, wanted in loader:
                optimizer.zero_grad()
                F.mse_loss(model(samples), wanted).backward()
                optimizer.step()
    findings = replay(run_path, [RuleSpec("LossSpike")]).findings
    first = min(findings, key=lambda finding: finding.step)
    assert first.step % 20 == 13
    assert f"number 13 of epoch {first.step // 20} of the data loader" in first.message
    assert "begins with sample 104 of" in first.message


class TestLossSpikeInRealRuns(RealRuns):
    rule = "LossSpike"
    cause = "batches_disturb"

    def rules(self) -> list[RuleSpec]:
        """With a short window, for a short run."""
        return [*default_rules(), RuleSpec(self.rule, {"window": 32, "fewest": 16, "often": 3})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for step in range(110):
            inputs, labels = batch(128)
            wrong = sick and step >= 80 and step % 6 == 0
            update(model, optimizer, inputs, (labels + 1) % 4 if wrong else labels)
