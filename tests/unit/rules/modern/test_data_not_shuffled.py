"""DataNotShuffled: the batches are sorted by class or by time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from sketches_of import Batch, given, steps
from watchglass.records import Mode
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "DataNotShuffled"


def sorted_by_class(step: int, random: np.random.Generator) -> tuple[Any, Any]:
    return random.normal(size=(32, 4)), np.full(32, step % 4)


def shuffled(step: int, random: np.random.Generator) -> tuple[Any, Any]:
    return random.normal(size=(32, 4)), random.integers(0, 4, 32)


def series(jumps: bool) -> Batch:
    """Values of a time that walks through the data, or that grow slowly with the steps."""

    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        mean = 10 * np.sin(step * 1.7) if jumps else 0.5 * step
        return random.normal(size=(32, 1)), mean + random.normal(size=(32, 1))

    return made


def half_of_the_classes(step: int, random: np.random.Generator) -> tuple[Any, Any]:
    return random.normal(size=(32, 4)), random.integers(0, 2, 32) + 2 * (step % 8 // 4)


def in_epochs(made: Sequence[Step], batches: int, *, shape: Sequence[int] = (32, 4), varied: int = 99) -> list[Step]:
    """The steps with batches that come again in each epoch."""
    about = {"shapes": {"0": list(shape)}, "iterations": {}, "varied": varied}
    return [
        Step(
            scalars=step.scalars,
            facts={
                **step.facts,
                "batch": {"hashes": [f"{n % batches:016x}"], **about},
            },
        )
        for n, step in enumerate(made)
    ]


class TestDataNotShuffled(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return steps(30, sorted_by_class)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (steps(30, series(jumps=True), "mse_loss"),)

    def healthy(self) -> Sequence[Step]:
        return steps(30, shuffled)

    def test_a_few_batches_of_single_classes_are_enough(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path / "sorted", steps(7, sorted_by_class)))
        assert not self.serious(self.build(tmp_path / "shuffled", steps(7, shuffled)))

    def test_batches_of_half_of_the_classes_count_where_they_come_again(self, tmp_path: Path) -> None:
        made = steps(40, half_of_the_classes)
        assert not self.serious(self.build(tmp_path / "new", made))
        assert self.serious(self.build(tmp_path / "again", in_epochs(made, 8)))

    def test_inputs_of_few_values_come_again_by_chance(self, tmp_path: Path) -> None:
        made = in_epochs(steps(40, half_of_the_classes), 8, varied=3)
        assert not self.serious(self.build(tmp_path / "run", made))

    def test_single_samples_of_a_model_that_acts_are_no_batches(self, tmp_path: Path) -> None:
        made = steps(80, half_of_the_classes)
        acts, learns = in_epochs(made, 8, shape=(3,)), in_epochs(made, 80)
        turns = [acts[n] if n % 2 else step for n, step in enumerate(learns)]
        assert not self.serious(self.build(tmp_path / "run", turns))

    def test_few_batches_that_differ_by_chance_are_not_sorted(self, tmp_path: Path) -> None:
        values = np.random.default_rng(1).normal(size=(4, 8, 1))
        made = steps(40, lambda step, random: (random.normal(size=(8, 1)), values[step % 4]), "mse_loss")
        assert not self.serious(self.build(tmp_path / "run", in_epochs(made, 4)))

    def test_sorted_inputs_count_where_the_loader_reads_in_order(self, tmp_path: Path) -> None:
        def walk(step: int, random: np.random.Generator) -> Any:
            return random.normal(size=(32, 4)) + 3 * (step % 8)

        made = steps(40, shuffled, inputs=walk)
        assert not self.serious(self.build(tmp_path / "new", made))
        assert self.serious(self.build(tmp_path / "again", in_epochs(made, 8)))

    @pytest.mark.parametrize(("rows", "found"), [(128, True), (1, False)])
    def test_evaluations_without_a_loss_have_more_rows_than_a_model_that_acts(
        self, tmp_path: Path, rows: int, found: bool
    ) -> None:
        """Right answers are counted, or a model acts and learns from what follows."""
        made = steps(30, sorted_by_class, inputs=lambda step, random: random.normal(size=(32, 4)))
        called = Step(facts=given(np.zeros((rows, 4))), mode=Mode.EVAL)
        turns = [each for step in made for each in (step, called)]
        assert bool(self.serious(self.build(tmp_path, turns))) is found

    def test_targets_that_grow_with_the_steps_are_no_order_of_the_data(self, tmp_path: Path) -> None:
        assert not self.serious(self.build(tmp_path / "run", steps(30, series(jumps=False), "mse_loss")))

    @pytest.mark.parametrize("labels", [True, False])
    def test_labels_of_a_recurrent_model_count_and_values_do_not(self, tmp_path: Path, labels: bool) -> None:
        """A series that is read in order has such values."""

        def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
            value = step // 10 % 2 if labels else 10 * math.sin(step)
            return random.normal(size=(32, 1)), np.full((32, 1), value) + (not labels) * random.normal(size=(32, 1))

        function = "binary_cross_entropy_with_logits" if labels else "mse_loss"
        walk = steps(40, made, function)
        kinds = {"module_kinds": {"rnn": "recurrent"}, "module_types": {"rnn": "LSTM"}}
        walk[0] = Step(scalars=walk[0].scalars, facts={**walk[0].facts, "model": kinds})
        assert bool(self.serious(self.build(tmp_path / "run", walk))) is labels

    def test_a_loader_that_shuffles_decides(self, tmp_path: Path) -> None:
        made = steps(30, sorted_by_class)
        made[0] = Step(scalars=made[0].scalars, facts={**made[0].facts, "data_loader": {"sampler": "RandomSampler"}})
        assert not self.serious(self.build(tmp_path / "run", made))


class TestDataNotShuffledInRealRuns(RealRuns):
    rule = "DataNotShuffled"
    cause = "data_not_shuffled"

    def train(self, watch: Watch, *, sick: bool) -> None:
        inputs, labels = batch(640)
        if sick:
            order = labels.argsort()
            inputs, labels = inputs[order], labels[order]
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(2):
            for rows in torch.arange(640).split(32):
                update(model, optimizer, inputs[rows], labels[rows])
