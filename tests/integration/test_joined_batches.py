"""Short batches of evaluations that make one step together: the means stay those of all batches."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from calls import counted_calls
from watchglass import Mode, Run, open_run
from watchglass.capture import Hook
from watchglass.capture.limits import CaptureLimits
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.run import summaries
from watchglass.testing.rule_suite import views_of

# Where anything was compiled in the process no batch joins.
pytestmark = pytest.mark.own_process

#: A batch never pays for a step of its own: after the first ones, as many make a step as may.
JOINS = CaptureLimits(whole_batches=64, batch_ns=1 << 50)
#: Each batch is a step.
WHOLE = CaptureLimits(whole_batches=1 << 40)
#: Batches of each evaluation, the last one smaller, and how many evaluations come before batches join.
BATCHES, BEFORE = 100, 2

Evaluate = Callable[[nn.Module, Tensor, Tensor], object]


def batches(count: int, seed: int, shift: float = 0.0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        size = 3 if number == count - 1 else 8
        inputs = torch.randn(size, 6, generator=generator) + shift
        made.append((inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long()))
    return made


def shuffled(data: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    inputs, labels = (torch.cat(each) for each in zip(*data, strict=True))
    order = torch.randperm(len(labels))
    return [*zip(inputs[order].split(8), labels[order].split(8), strict=True)]


@contextmanager
def watching(run: Path, limits: CaptureLimits, **settings: Any) -> Iterator[Hook]:
    with Hook(str(run), limits=limits, strict=True, **settings) as hook:
        PyTorchAdapter(hook.port, discover=True)
        yield hook


class Loop:
    """A small classifier that is trained for some steps and evaluated."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.training = batches(8, seed=1)
        self.validation = batches(BATCHES, seed=2)

    def train(self) -> None:
        for inputs, labels in self.training:
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(inputs), labels).backward()
            self.optimizer.step()

    def evaluate(self, evaluate: Evaluate, data: list[tuple[Tensor, Tensor]] | None = None) -> None:
        self.model.eval()
        with torch.no_grad():
            for inputs, labels in self.validation if data is None else data:
                evaluate(self.model, inputs, labels)
        self.model.train()

    def epochs(self, evaluate: Evaluate, count: int = BEFORE + 2) -> None:
        for _ in range(count):
            self.train()
            self.evaluate(evaluate)


def recorded(path: Path, limits: CaptureLimits, evaluate: Evaluate) -> Run:
    with watching(path, limits):
        Loop().epochs(evaluate)
    return open_run(path)


def by_function(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    F.cross_entropy(model(inputs), labels)


def by_sum(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    F.nll_loss(model(inputs).log_softmax(1), labels, reduction="sum")


def by_two(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    output = model(inputs)
    nn.CrossEntropyLoss()(output, labels)
    F.multi_margin_loss(output, labels)


def counted(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    (model(inputs).argmax(1) == labels).sum()


def counted_beside_a_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    output = model(inputs)
    F.multi_margin_loss(output, labels)
    (output.argmax(1) == labels).float().sum()


def to_words(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    model(inputs).argmax(1)


def weighed(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    F.binary_cross_entropy_with_logits(model(inputs)[:, 0], (labels > 0).float())


FORMS = [by_function, by_sum, by_two, counted, counted_beside_a_loss, to_words, weighed]


@pytest.mark.parametrize("evaluate", FORMS, ids=lambda form: form.__name__)
def test_means_and_numbers_are_those_of_all_batches(tmp_path: Path, evaluate: Evaluate) -> None:
    joined, whole = (recorded(tmp_path / name, limits, evaluate) for name, limits in (("j", JOINS), ("w", WHOLE)))
    assert len(joined.steps(Mode.EVAL)) < BATCHES * (BEFORE + 1.2) < len(whole.steps(Mode.EVAL))
    assert len(joined.stretches()) == len(whole.stretches()) == BEFORE + 2
    for ours, theirs in zip(joined.stretches(), whole.stretches(), strict=True):
        assert (ours.first_step, ours.last_step) == (theirs.first_step, theirs.last_step)
        assert ours.means == {name: pytest.approx(mean) for name, mean in theirs.means.items()}
    assert joined.steps(Mode.TRAIN) == whole.steps(Mode.TRAIN)


def test_batches_that_join_take_less_than_half_of_the_calls(tmp_path: Path) -> None:
    def calls(name: str, limits: CaptureLimits) -> int:
        with watching(tmp_path / name, limits):
            loop = Loop()
            loop.epochs(by_function)
            with counted_calls() as found:
                loop.evaluate(by_function)
            return sum(found.values())

    assert calls("joined", JOINS) < calls("whole", WHOLE) / 2


def test_values_that_the_script_saves_stay_apart(tmp_path: Path) -> None:
    def saves(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        by_function(model, inputs, labels)
        hook.save_scalar("mine", float(inputs.sum()))
        if not len(labels) % 2:
            hook.save_tensor("inputs", inputs)

    with watching(tmp_path / "run", JOINS) as hook:
        loop = Loop()
        loop.epochs(by_function)
        loop.evaluate(saves)
        loop.train()
    run = open_run(tmp_path / "run")
    assert len(run.tensor("inputs").steps(mode=Mode.EVAL)) == BATCHES - 1
    kept = run.tensor("mine").values(mode=Mode.EVAL)
    assert sorted(kept.values()) == pytest.approx(sorted(float(inputs.sum()) for inputs, _ in loop.validation))


def test_evaluations_that_are_captured_are_steps_of_their_own(tmp_path: Path) -> None:
    collections = {"outputs": {"modes": {"eval": {"save_interval": 10}}}}
    with watching(tmp_path / "run", JOINS, collections=collections):
        Loop().epochs(by_function)
    captured = open_run(tmp_path / "run").tensor("output").steps(mode=Mode.EVAL)
    assert [*captured] == [*range(0, BATCHES * (BEFORE + 2), 10)]


def test_the_loss_of_another_model_is_not_taken_for_that_of_the_model(tmp_path: Path) -> None:
    def beside_another(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        by_function(model, inputs, labels)
        F.cross_entropy(other(inputs), labels)

    def only_another(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        F.cross_entropy(other(inputs), labels)

    other = nn.Linear(6, 3)
    with torch.no_grad():
        other.bias[0] = 100.0
    with watching(tmp_path / "run", JOINS):
        loop = Loop()
        loop.epochs(by_function)
        loop.evaluate(beside_another)
        loop.train()
        loop.evaluate(by_function)
        loop.evaluate(only_another)
        loop.train()
    run = open_run(tmp_path / "run")
    assert all(stretch.means["loss"] < 3 for stretch in run.stretches())
    assert run.stretches()[-1].means["model_2/loss"] > 10


def test_a_loss_that_is_not_finite_makes_the_mean_of_its_evaluation_so(tmp_path: Path) -> None:
    with watching(tmp_path / "run", JOINS):
        loop = Loop()
        loop.epochs(by_function)
        loop.validation[50][0].fill_(float("nan"))
        loop.evaluate(by_function)
        loop.train()
        loop.validation[50][0].fill_(0.0)
        loop.evaluate(by_function)
    *_, before, broken, after = (stretch.means["loss"] for stretch in open_run(tmp_path / "run").stretches())
    assert math.isnan(broken)
    assert math.isfinite(before + after)


@pytest.mark.parametrize("first", ["training", "validation"])
def test_splits_that_are_evaluated_one_after_the_other_stay_apart(tmp_path: Path, first: str) -> None:
    def run_of(name: str, limits: CaptureLimits) -> watchglass.Run:
        with watching(tmp_path / name, limits, save_interval=1):
            loop = Loop()
            seen = batches(90, seed=1)
            loop.validation = batches(BATCHES, seed=2, shift=1.0)
            splits = [seen, loop.validation]
            for _ in range(5):
                loop.training = shuffled(seen)
                loop.train()
                for split in splits if first == "training" else reversed(splits):
                    loop.evaluate(by_function, split)
            loop.train()
        return open_run(tmp_path / name)

    joined, whole = run_of("joined", JOINS), run_of("whole", WHOLE)
    assert len(joined.steps(Mode.EVAL)) < len(whole.steps(Mode.EVAL)) / 2
    for ours, theirs in zip(joined.stretches()[1:4], whole.stretches()[1:4], strict=True):
        assert ours.means["loss"] == pytest.approx(theirs.means["loss"], rel=0.2)
        assert ours.training_means["loss"] == pytest.approx(theirs.training_means["loss"], rel=0.2)


def test_views_count_the_batches_that_a_step_stands_for(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", JOINS, by_function)
    assert summaries.count_steps(run, Mode.EVAL) == BATCHES * (BEFORE + 2)
    views = [view for view in views_of(tmp_path / "run") if view.mode is Mode.EVAL]
    assert sum(view.covers for view in views) == BATCHES * (BEFORE + 2)


def test_no_model_is_kept_alive(tmp_path: Path) -> None:
    with watching(tmp_path / "run", JOINS):
        loop = Loop()
        loop.epochs(by_function)
        model = weakref.ref(loop.model)
        del loop
        gc.collect()
        assert model() is None
