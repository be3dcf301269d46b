"""LabelRange: labels of one class, labels outside the output's classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, update
from sketches_of import Batch, steps
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "LabelRange"


def labelled(low: int, high: int, classes: int = 4) -> Batch:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        return random.normal(size=(64, classes)), random.integers(low, high, 64)

    return made


def by_a_layer(made: list[Step]) -> list[Step]:
    call = {"function": "cross_entropy", "operation": "weighted_sum"}
    return [Step(scalars=step.scalars, facts={**step.facts, "loss_call": call}) for step in made]


def values(low: float, high: float) -> Batch:
    return lambda step, random: (random.normal(size=(64, 2)), random.uniform(low, high, (64, 2)))


def numbered(low: int, high: int, *, even: bool = True) -> Batch:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        drawn = random.integers(low, high, (32, 1)) if even else random.poisson(3, (32, 1)) % high
        return random.normal(size=(32, 1)), drawn.astype(float)

    return made


class TestLabelRange(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return by_a_layer(steps(12, labelled(2, 3)))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            by_a_layer(steps(12, labelled(0, 6))),
            by_a_layer(steps(12, values(-1, 1), "binary_cross_entropy_with_logits")),
            steps(20, numbered(0, 10), "mse_loss"),
            steps(20, numbered(0, 3), "l1_loss"),
        )

    def healthy(self) -> Sequence[Step]:
        return by_a_layer(steps(12, labelled(0, 4)))

    def test_a_class_that_never_occurs_is_an_info(self, tmp_path: Path) -> None:
        (finding,) = replay(
            self.build(tmp_path / "run", by_a_layer(steps(12, labelled(1, 4)))), [RuleSpec(RULE)]
        ).findings
        assert (finding.severity.value, finding.message) == ("info", "class 0 of 4 does not occur in 768 labels")


@pytest.mark.parametrize(
    "made", [numbered(0, 10, even=False), numbered(1, 6), numbered(0, 2), numbered(0, 60), values(0, 9)]
)
def test_counts_grades_labels_and_values_are_no_classes(run_path: Path, made: Batch) -> None:
    assert replay(build_run(run_path, steps(40, made, "mse_loss")), [RuleSpec(RULE)]).findings == ()


class TestLabelRangeInRealRuns(RealRuns):
    rule = "LabelRange"
    cause = "nothing_to_learn"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(30):
            inputs, labels = batch()
            update(model, optimizer, inputs, labels.clamp(2, 2) if sick else labels)


def test_the_positive_pair_of_a_contrastive_loss_may_always_be_the_first(run_path: Path) -> None:
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watchglass.watch(model, run=run_path, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(20):
            keys = torch.randn(32, 16)
            queries = model(keys)
            positive, negative = (queries * queries.detach()).sum(1, keepdim=True), queries @ torch.randn(4, 8)
            optimizer.zero_grad()
            F.cross_entropy(torch.cat([positive, negative], 1), torch.zeros(32, dtype=torch.long)).backward()
            optimizer.step()
    assert not replay(str(run_path), [RuleSpec(RULE)]).findings


@pytest.mark.parametrize(
    ("negatives", "penalty", "found"), [(False, False, ["targets_all_one"]), (True, False, []), (False, True, [])]
)
def test_targets_that_are_all_one_say_nothing_unless_something_else_is_in_the_loss(
    run_path: Path, negatives: bool, penalty: bool, found: list[str]
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Bilinear(8, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=run_path, strict=True, **capture_for([RuleSpec(RULE)])):
        for _ in range(30):
            words = torch.randn(32, 8)
            scores = model(words, torch.cat([words[:16], torch.randn(16, 8)]) if negatives else words)
            targets = (torch.arange(32) < 16).float() if negatives else torch.ones(32)
            loss = F.binary_cross_entropy_with_logits(scores.squeeze(1), targets)
            if penalty:
                loss = loss + F.mse_loss(scores.squeeze(1), words.mean(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    findings = replay(str(run_path), [RuleSpec(RULE)]).findings
    assert [symptom for finding in findings for symptom in finding.symptoms] == found
