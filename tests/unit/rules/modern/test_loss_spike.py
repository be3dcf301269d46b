"""LossSpike: jumps of the loss that recover, repeat, or last."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from facts_of import watching
from real_runs import RealRuns, Watch, batch, classifier, update
from watchglass import open_run
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


def with_loader(
    epochs: Callable[[int], list[int]], *, sampler: str = "RandomSampler", batches: int = 20
) -> list[Step]:  # fmt: skip
    """A spike at step 123, which is not captured; the epochs of the batches of each captured step, from 1."""
    loader = {"loader": "loader", "batches": batches, "batch_size": 8, "sampler": sampler}
    steps = losses(lambda step: 4.0 * (step == 123), steps=200)
    for step in range(0, 200, 10):
        facts = [
            Fact("batch", 0, "test", {**batch_fact("aa")["batch"], "iterations": {"loader": epoch}})
            for epoch in epochs(step)
        ]
        facts += [Fact("data_loader", 0, "test", loader)] * (step == 0)
        steps[step] = replace(steps[step], facts=facts)
    return steps


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        (
            with_loader(lambda step: [step // 20 + 1]),
            "; if each step takes one batch, its batch is number 3 of epoch 6 of the data loader (from 0); to fetch "
            "it: make and seed the loader as the script does, and take list(loader)[3] in its epoch 6",
        ),
        (
            with_loader(lambda step: [step // 20 + 1], sampler="SequentialSampler"),
            "number 3 of epoch 6 of the data loader (from 0), which begins with sample 24 of the data set; to fetch "
            "it: [loader.dataset[i] for i in range(24, 32)]",
        ),
        (
            with_loader(lambda step: [step // 20 + 1], sampler="DistributedSampler"),
            "epoch 6 of the data loader (from 0); to fetch the numbers of its samples on this rank: "
            "list(loader.batch_sampler)[3], after sampler.set_epoch(6) if the script sets the epoch, from 0",
        ),
        # Two batches for each step.
        (
            with_loader(lambda step: [step // 10 + 1] * 2, sampler="SequentialSampler"),
            "if each forward takes one batch, its batches are numbers 6 to 7 of epoch 12 of the data loader (from 0), "
            "which begin with sample 48 of the data set; to fetch them: [loader.dataset[i] for i in range(48, 64)]",
        ),
        # Three batches for each step, of 20: over the end of an epoch, with a shorter last step, with the rest first.
        (
            with_loader(lambda step: [(3 * step + each) // 20 + 1 for each in range(3)]),
            "each forward takes one batch, its batches are numbers 9 to 11 of epoch 18 of the data loader (from 0); "
            "to fetch them: make and seed the loader as the script does, and take list(loader)[9:12] in its epoch 18",
        ),
        (
            with_loader(lambda step: [step // 7 + 1] * (2 if step % 7 == 6 else 3)),
            "numbers 12 to 14 of epoch 17 of the data loader (from 0); to fetch them: make and seed the loader as the "
            "script does, and take list(loader)[12:15] in its epoch 17",
        ),
        (
            with_loader(lambda step: [step // 6] * (2 if step % 6 == 0 and step else 0) + [step // 6 + 1] * 3),
            "numbers 9 to 11 of epoch 20 of the data loader (from 0); to fetch them: make and seed the loader as the "
            "script does, and take list(loader)[9:12] in its epoch 20",
        ),
        (
            with_loader(lambda step: [(3 * step + each) // 37 + 1 for each in range(3)], batches=37),
            "; if each forward takes one batch, its batches are numbers 36 of epoch 9 to 1 of epoch 10 of the data "
            "loader (from 0)",
        ),
        # Epochs that end early, and two forwards of one batch.
        (with_loader(lambda step: [step // 15 + 1]), "losses before"),
        (with_loader(lambda step: [step // 20 + 1] * 2), "losses before"),
    ],
)
def test_the_place_of_a_batch_is_given_without_a_capture(run_path: Path, steps: list[Step], end: str) -> None:
    (finding,) = replay(TestLossSpike().build(run_path, steps), [RuleSpec("LossSpike")]).findings
    assert finding.message.endswith(end)


def test_a_place_that_spikes_again_is_recognised_without_a_hash(run_path: Path) -> None:
    """In order, the batch of the same number is the same in each epoch."""
    steps = with_loader(lambda step: [step // 20 + 1], sampler="SequentialSampler")
    steps[143] = replace(steps[143], scalars={**steps[143].scalars, "loss": steps[123].scalars["loss"]})
    (first, second), _ = shown(TestLossSpike().make, TestLossSpike().build(run_path, steps))
    assert "as at the spike of" not in first.message
    assert "begins with sample 24 of the data set, as at the spike of step 123; to fetch it" in second.message


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


@pytest.mark.parametrize("distributed", [False, True])
def test_one_poisoned_batch_is_named_with_gradient_accumulation(run_path: Path, distributed: bool) -> None:
    """Each step takes four batches of an epoch of 42; its last step takes two."""
    inputs = torch.randn(168, 16)
    targets = inputs[:, :1] + 0.5 * torch.randn(168, 1)
    data = TensorDataset(inputs, targets)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3) if distributed else None
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    poisoned = torch.arange(100, 104)
    targets[poisoned] += 60
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(model, run_path, facts=("batch", "data_loader"), save_interval=1):
        for epoch in range(9):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for number, (samples, wanted) in enumerate(loader, 1):
                (F.mse_loss(model(samples), wanted) / 4).backward()
                if number % 4 == 0 or number == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
    findings, _ = shown(TestLossSpike().make, run_path)
    for finding in findings:
        place = re.search(r"numbers (\d+) to (\d+) of epoch (\d+) of the data loader", finding.message)
        assert place is not None
        begin, end, epoch = map(int, place.groups())
        assert (epoch, begin // 4) == divmod(finding.step, 11)
        if sampler is None:
            assert begin <= 25 <= end
            assert f"[loader.dataset[i] for i in range({4 * begin}, {4 * end + 4})]" in finding.message
        else:
            assert f"list(loader.batch_sampler)[{begin}:{end + 1}], after sampler.set_epoch({epoch})" in finding.message
            sampler.set_epoch(epoch)
            taken = {index for batch in list(loader.batch_sampler)[begin : end + 1] for index in batch}
            assert taken & set(poisoned.tolist())
        facts = [fact.data["hashes"] for fact in open_run(run_path).facts("batch") if fact.global_step == finding.step]
        assert "hash " + "+".join(name for names in facts for name in names) in finding.message
    assert findings
    again = [
        finding for finding in findings[1:] if f"same as at the spike of step {findings[0].step}" in finding.message
    ]
    assert len(again) == (0 if distributed else len(findings) - 1)


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
