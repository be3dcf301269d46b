"""WorkerSeedRepeats: several data workers give the same batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import watchglass
from real_runs import RealRuns, Watch, classifier, update
from synthetic_steps import ALWAYS, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "WorkerSeedRepeats"


def epoch(numbers: Sequence[int], first: Sequence[int], varied: int = 300) -> list[Step]:
    """Steps with numbered batches, the first ones of an epoch of workers among them."""
    facts: dict[int, Any] = {
        step: {"batch": {"hashes": [f"{number:016x}"], "varied": varied, "iterations": {"loader": 1}}}
        for step, number in enumerate(numbers)
    }
    hashes = [f"{number:016x}" for number in first]
    workers = list(range(len(first)))
    facts[1]["batch"] = {"hashes": hashes, "varied": varied, "loader": "loader", "iteration": 1, "workers": workers}
    return training(len(numbers), facts=facts, due=ALWAYS)


class TestWorkerSeedRepeats(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return epoch([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0])

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (epoch([0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1]),)

    def healthy(self) -> Sequence[Step]:
        return epoch([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3])


class Drawn(Dataset[tuple[Tensor, int]]):
    """Samples drawn with NumPy: from the generator that workers have a copy of, or by index."""

    def __init__(self, by_index: bool) -> None:
        self.by_index = by_index
        self.generator = np.random.default_rng(3)

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = np.random.default_rng(index) if self.by_index else self.generator
        sample = torch.from_numpy(generator.normal(size=16)).float()
        return sample, int(sample[:4].argmax())


class TestWorkerSeedRepeatsInRealRuns(RealRuns):
    rule = "WorkerSeedRepeats"
    cause = "worker_seeds_repeat"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for inputs, labels in DataLoader(Drawn(by_index=not sick), batch_size=8, num_workers=2):
            update(model, optimizer, inputs, labels)


class Stream(IterableDataset[tuple[Tensor, int]]):
    """A stream that each worker reads as a whole, or in its part."""

    def __init__(self, divided: bool) -> None:
        self.divided = divided

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        samples = torch.randn(128, 16, generator=torch.Generator().manual_seed(1))
        for sample in samples[info.id :: info.num_workers] if self.divided and info is not None else samples:
            yield sample, int(sample[:4].argmax())


def findings(run: Path, loader: DataLoader[Any], epochs: int = 1) -> list[str]:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watchglass.watch(model, run=run, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(epochs):
            for inputs, labels in loader:
                update(model, optimizer, inputs, labels)
    return [finding.message for finding in replay(str(run), [RuleSpec(RULE)]).findings]


def test_a_stream_that_every_worker_reads_as_a_whole_is_found(tmp_path: Path) -> None:
    whole, divided = (DataLoader(Stream(part), batch_size=16, num_workers=2) for part in (False, True))
    assert findings(tmp_path / "whole", whole) == [
        "2 of 2 workers of the data loader gave the same first batch in epoch 1"
    ]
    assert findings(tmp_path / "divided", divided) == []


def test_epochs_with_fewer_batches_than_workers_are_not_compared_with_each_other(tmp_path: Path) -> None:
    few = [(torch.randn(16), index % 4) for index in range(8)]
    loader = DataLoader(few, batch_size=8, num_workers=2)  # type: ignore[arg-type]
    assert findings(tmp_path / "run", loader, epochs=4) == []


def test_data_that_are_constant_say_nothing_about_workers(tmp_path: Path) -> None:
    sample = (torch.randn(16), 1)
    loader = DataLoader([sample] * 64, batch_size=8, num_workers=2)  # type: ignore[arg-type]
    assert findings(tmp_path / "run", loader) == []
