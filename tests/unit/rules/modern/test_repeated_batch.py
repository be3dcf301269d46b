"""RepeatedBatch: steps that train on the same batch although there are others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from synthetic_steps import ALWAYS, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "RepeatedBatch"


def given(numbers: Sequence[int], batches: int | None, epoch: int) -> list[Step]:
    """Steps with numbered batches of a loader that has so many of them in an epoch."""
    facts: dict[int, Any] = {
        step: {
            "batch": {
                "hashes": [f"{number:016x}"], "varied": 300, "shapes": {"0": [32, 16]},
                "iterations": {"loader": step // epoch + 1},
            }
        }
        for step, number in enumerate(numbers)
    }  # fmt: skip
    facts[0]["data_loader"] = {"loader": "loader", "batch_size": 32, "batches": batches}
    return training(len(numbers), facts=facts, due=ALWAYS)


class TestRepeatedBatch(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return given([7] * 20, 50, epoch=1)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (given([0, 1, 2, 0, 3, 1, 4, 2], 50, epoch=50),)

    def healthy(self) -> Sequence[Step]:
        return given([*range(10)] * 8, 10, epoch=10)


class TestRepeatedBatchInRealRuns(RealRuns):
    rule = "RepeatedBatch"
    cause = "batch_repeated"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        loader = data(256)
        for _ in range(2):
            first = next(iter(loader))
            for each in loader:
                update(model, optimizer, *(first if sick else each))


def data(samples: int, batch_size: int = 32, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*batch(samples)), batch_size=batch_size, **settings)


def found_in(run: Path, batches: Iterator[tuple[Tensor, Tensor]], steps: int = 24, **facts: Any) -> list[Severity]:
    """Severities of the findings where a model is trained on batches."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watchglass.watch(model, run=run, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for inputs, labels in itertools.islice(batches, steps):
            update(model, optimizer, inputs, labels)
    return [finding.severity for finding in replay(str(run), [RuleSpec(RULE)]).findings]


def epochs(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def first_each_time(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield next(iter(loader))


def first_for_all(loader: DataLoader[Any]) -> Iterator[Any]:
    yield from itertools.repeat(next(iter(loader)))


def with_validation(loader: DataLoader[Any], other: DataLoader[Any], model: nn.Module) -> Iterator[Any]:
    while True:
        yield from loader
        for inputs, labels in other:
            evaluate(model, inputs, labels)


def inner_loop(loader: DataLoader[Any], times: int) -> Iterator[Any]:
    for each in epochs(loader):
        yield from [each] * times


def of_rows(number: int, rows: slice) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows of a data set, taken again at each step."""
    inputs, labels = batch(number)
    while True:
        yield inputs[rows], labels[rows]


def of_columns(number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All rows of some columns of a table."""
    table, (_, labels) = torch.randn(number, 64), batch(number)
    while True:
        yield table[:, :16], labels


def augmented(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches with other inputs each time."""
    for inputs, labels in batches:
        yield inputs + 0.1 * torch.randn_like(inputs), labels


class Endless(IterableDataset[Any]):
    """Samples without end, the same in each iteration."""

    def __iter__(self) -> Iterator[Any]:
        random = torch.Generator().manual_seed(1)
        while True:
            inputs = torch.randn(16, generator=random)
            yield inputs, inputs[:4].argmax()


def of_two_loaders(first: DataLoader[Any], second: DataLoader[Any]) -> Iterator[Any]:
    for one, other in zip(epochs(first), epochs(second), strict=False):
        yield one
        yield other


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        (lambda: first_each_time(data(256)), [Severity.ERROR]),
        # The whole data set, by a loader or without one.
        (lambda: epochs(data(64, 64)), []),
        (lambda: first_each_time(data(64, 64)), []),
        (lambda: epochs(data(48, 64)), []),
        (lambda: itertools.repeat(batch(64)), [Severity.INFO]),
        (lambda: itertools.repeat((torch.ones(32, 16), torch.zeros(32, dtype=torch.long))), []),
        # Epochs in the same order, also of batches that were kept.
        (lambda: epochs(data(96)), []),
        (lambda: itertools.cycle(data(96)), []),
        (lambda: epochs(data(96, shuffle=True)), []),
        # Several updates with one batch.
        (lambda: inner_loop(data(256), 4), []),
        # Drawn with replacement, a few samples at a time.
        (lambda: epochs(data(8, 1, sampler=RandomSampler(range(8), replacement=True))), []),
        (lambda: of_two_loaders(data(96), data(64, 64)), []),
        # A part of a data set, four fifths of one, and of columns.
        (lambda: of_rows(640, slice(0, 32)), [Severity.WARNING]),
        (lambda: of_rows(640, slice(0, 512)), [Severity.INFO]),
        (lambda: of_columns(64), [Severity.INFO]),
        (lambda: first_each_time(DataLoader(Endless(), 32)), [Severity.WARNING]),
        (lambda: epochs(DataLoader(Endless(), 32)), []),
        (lambda: augmented(first_each_time(data(256))), [Severity.ERROR]),
        (lambda: augmented(first_each_time(data(256, shuffle=True))), []),
        (lambda: augmented(first_each_time(data(32))), []),
        (lambda: augmented(first_for_all(data(64, shuffle=True))), [Severity.ERROR]),
        (lambda: augmented(first_for_all(data(2048, shuffle=True))), []),
        (lambda: augmented(epochs(data(96))), []),
        (lambda: with_validation(data(96), data(96), classifier()), []),
    ],
)
def test_only_batches_that_stand_in_for_others_are_reported(
    run_path: Path, batches: Callable[[], Iterator[tuple[Tensor, Tensor]]], found: list[Severity]
) -> None:
    torch.manual_seed(0)
    assert found_in(run_path, batches()) == found


@pytest.mark.parametrize(("rows", "symptoms"), [(256, ("same_inputs",)), (32, ())])
def test_one_tensor_of_fewer_rows_than_an_evaluation_may_be_a_batch(
    run_path: Path, rows: int, symptoms: tuple[str, ...]
) -> None:
    """A batch that was drawn before the loop, or a small data set, which overfits as well."""
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    (inputs, labels), held_out = batch(32), batch(rows)
    with watchglass.watch(model, run=run_path, strict=True, save_interval=1):
        for _ in range(4):
            evaluate(model, *held_out)
            for _ in range(12):
                update(model, optimizer, inputs, labels)
    (found,) = replay(str(run_path), [RuleSpec(RULE)]).findings
    assert (found.severity, found.symptoms) == (Severity.INFO, symptoms)


@pytest.mark.parametrize("memorized", [True, False])
@pytest.mark.parametrize("scale", [1.0, float("nan")])
def test_rows_that_were_drawn_once_are_reported_where_they_are_memorised(
    run_path: Path, memorized: bool, scale: float
) -> None:
    """An evaluation without a finite loss shows nothing."""
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02 if memorized else 1e-5)
    (inputs, labels), rows = batch(640), torch.randperm(640)[:32]
    with watchglass.watch(model, run=run_path, strict=True, save_interval=1):
        for _ in range(4):
            for _ in range(12):
                update(model, optimizer, inputs[rows], labels[rows])
            held_out, truth = batch(256)
            evaluate(model, scale * held_out, truth)
    found = [finding.severity for finding in replay(str(run_path), [RuleSpec(RULE)]).findings]
    assert found[-1] is (Severity.WARNING if memorized and scale == 1 else Severity.INFO)


def test_an_evaluation_has_all_rows_of_its_loader(run_path: Path) -> None:
    """A batch of the training is memorised, and the batches of the evaluation have fewer rows than it."""
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    (inputs, labels), rows, held_out = batch(640), torch.randperm(640)[:32], data(256, 16)
    with watchglass.watch(model, run=run_path, strict=True, save_interval=1):
        for _ in range(4):
            for _ in range(12):
                update(model, optimizer, inputs[rows], labels[rows])
            for each in held_out:
                evaluate(model, *each)
    found = [finding.severity for finding in replay(str(run_path), [RuleSpec(RULE)]).findings]
    assert found[-1] is Severity.WARNING


def test_micro_batches_and_closures_are_no_repeats(run_path: Path) -> None:
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    inputs, labels = batch(64)
    with watchglass.watch(model, run=run_path, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(12):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert replay(str(run_path), [RuleSpec(RULE)]).findings == ()
