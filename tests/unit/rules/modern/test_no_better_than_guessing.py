"""NoBetterThanGuessing: the loss is one that a guess without the inputs would reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_runs import RealRuns, Watch, batch, classifier, evaluate, update
from sketches_of import judged, steps
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Mode, facts
from watchglass.rules import find_rule
from watchglass.rules.guessing import add_targets, guess, pool_of
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "NoBetterThanGuessing"


def classes(step: int, random: np.random.Generator) -> tuple[Any, Any]:
    return random.normal(size=(32, 4)), random.integers(0, 4, 32)


def values(better: float) -> Any:
    def made(step: int, random: np.random.Generator) -> tuple[Any, Any]:
        targets = random.normal(size=(32, 1))
        return better * targets + 0.1 * random.normal(size=(32, 1)), targets

    return made


def noisy(level: float) -> Any:
    random = np.random.default_rng(3)
    return lambda step: float(level * (1 + 0.02 * random.normal()))


def memorised(accuracy: float, rows: int = 32) -> list[Step]:
    """A model that memorises its samples, and evaluations worse than guessing."""
    made = []
    for step in steps(200, classes, loss=lambda step: math.log(4) * 0.97**step):
        made.append(step)
        if len(made) % 40 == 0:
            random = np.random.default_rng(len(made))
            facts = judged("cross_entropy", random.normal(size=(rows, 4)), np.arange(rows) % 4)
            scalars = {"loss/cross_entropy": 1.6, "loss": 1.6, "accuracy": accuracy}
            made.append(Step(scalars=scalars, facts=facts, mode=Mode.EVAL, weight=100.0))
    return made


class TestNoBetterThanGuessing(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return steps(120, classes, loss=noisy(math.log(4)))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            # Noise that outputs do not follow, and targets that they miss by far.
            steps(90, values(0.0), "mse_loss"),
            steps(120, classes, loss=noisy(5.0)),
            memorised(0.26),
        )

    def healthy(self) -> Sequence[Step]:
        return steps(120, classes, loss=lambda step: math.log(4) * 0.99**step)

    def test_similar_inputs_with_similar_targets_speak_for_the_data(self, run_path: Path) -> None:
        follow = {"rows": 32, "targets": 0.6, "errors": 0.6}
        told = [
            replace(step, facts={**step.facts, "output_sketch": {**step.facts["output_sketch"], "neighbours": follow}})
            for step in self.sick()
        ]
        (finding,) = replay(build_run(run_path, told), [RuleSpec(RULE)]).findings
        assert finding.symptoms == ("loss_at_guess", "targets_follow_inputs")
        assert finding.message.endswith(", although samples with similar inputs have similar targets (0.60 of 1)")
        assert "nothing_to_learn" not in finding.causes


@pytest.mark.parametrize(("falls", "found"), [(0.05, False), (0.0, True)])
def test_a_short_run_that_learns_has_something_to_learn(run_path: Path, falls: float, found: bool) -> None:
    """Below the guess by little but beyond doubt, after a fall that has ended as the learning rate has decayed."""
    random = np.random.default_rng(3)

    def loss(step: int) -> float:
        return float(math.log(4) * (0.985 + falls * max(0.0, 1 - step / 70) + 0.002 * random.normal()))

    run = build_run(run_path, steps(120, classes, loss=loss))
    assert bool(replay(run, [RuleSpec(RULE)]).findings) is found


class TestNoBetterThanGuessingInRealRuns(RealRuns):
    rule = "NoBetterThanGuessing"
    cause = "nothing_to_learn"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        for step in range(90):
            inputs, labels = batch()
            update(model, optimizer, inputs, labels[torch.randperm(32)] if sick else labels)
            if step % 30 == 29:
                evaluate(model, *batch())


class TestStrongLabelSmoothingInRealRuns(RealRuns):
    rule = RULE
    cause = "label_smoothing_too_strong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0 if sick else 0.5)
        watch(model)
        for step in range(240):
            inputs, labels = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels, label_smoothing=0.97 if sick else 0.1).backward()
            optimizer.step()
            if step % 60 == 59:
                evaluate(model, *batch())


def test_a_loss_that_smooths_its_labels_is_known_by_its_settings(run_path: Path) -> None:
    """Keras mixes labels before its loss: no graph shows it."""
    made = []
    for step in steps(200, classes, loss=noisy(math.log(4))):
        step.facts["target_sketch"]["smoothing"] = 0.97
        step.scalars["accuracy"] = 0.9
        made.append(step)
    (finding,) = replay(build_run(run_path, made), [RuleSpec(RULE)]).findings
    assert finding.symptoms == ("smoothed_to_the_guess",)


class Attends(nn.Module):
    """Attention to four tokens, with learned positions or without them."""

    def __init__(self, *, places: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(4, 16)
        self.places = nn.Embedding(4, 16) if places else None
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        if self.places is not None:
            hidden = hidden + self.places(torch.arange(4))
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])
        return self.last(hidden.mean(1))


class TestMissingPositionsInRealRuns(RealRuns):
    rule = RULE
    cause = "position_missing"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Which of four tokens comes first: all sequences have the same tokens."""
        model = Attends(places=not sick)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(120):
            tokens = torch.rand(64, 4).argsort(1)
            update(model, optimizer, tokens, tokens[:, 0])


@pytest.mark.parametrize(("accuracy", "found"), [(0.26, True), (0.29, False)])
def test_an_accuracy_that_no_guess_has_by_chance_shows_that_inputs_matter(
    run_path: Path, accuracy: float, found: bool
) -> None:
    findings = replay(build_run(run_path, memorised(accuracy, rows=4000)), [RuleSpec(RULE)]).findings
    assert bool(findings) is found


_BINARY = "binary_cross_entropy_with_logits"


def pooled(**data: Any) -> float | None:
    known = {"function": "cross_entropy", "number": 1, "kind": "classes", "columns": 4, "rows": 100, **data}
    sketch = facts.TargetSketch.from_data(known)
    assert sketch is not None
    pool = pool_of({}, sketch)
    add_targets(pool, sketch)
    return guess(pool)


def test_a_guess_knows_frequencies_smoothing_and_weights() -> None:
    even, rare = [[0, 50], [1, 50], [2, 50], [3, 50]], [[0, 150], [1, 50]]
    assert pooled(counts=even) == math.log(4)
    assert np.isclose(pooled(counts=rare) or 0, 0.5623, atol=1e-4)
    # A few rows of many classes look more certain than they are.
    assert pooled(counts=[[0, 3], [1, 1]]) == math.log(4)
    assert pooled(counts=rare, weighted=True) == math.log(4)
    logits = torch.log(torch.tensor([[0.9 * 0.75 + 0.025, 0.9 * 0.25 + 0.025, 0.025, 0.025]]))
    best = F.cross_entropy(logits.repeat(4, 1), torch.tensor([0, 0, 0, 1]), label_smoothing=0.1)
    assert np.isclose(pooled(counts=rare, smoothing=0.1) or 0, float(best))


def test_a_guess_of_labels_knows_their_weight() -> None:
    labels = torch.tensor([1.0, 0, 0, 0])
    units = facts.SketchedUnits((0.25,))
    sketch = facts.TargetSketch(_BINARY, kind="labels", columns=1, rows=4, units=units, positive_weight=3.0)
    pool = pool_of({}, sketch)
    add_targets(pool, sketch)
    best = min(
        float(F.binary_cross_entropy_with_logits(torch.full((4,), logit), labels, pos_weight=torch.tensor(3.0)))
        for logit in np.linspace(-3, 3, 601)
    )
    assert np.isclose(guess(pool) or 0, best, atol=1e-4)


def test_of_candidates_in_a_fixed_order_a_guess_does_not_know_which_one_is_right() -> None:
    units = facts.SketchedUnits((1.0, 0.0, 0.0, 0.0))
    sketch = facts.TargetSketch(_BINARY, kind="labels", columns=4, rows=64, units=units)
    pool = pool_of({}, sketch)
    add_targets(pool, sketch)
    assert np.isclose(guess(pool) or 0, 0.5623, atol=1e-4)


def test_a_rate_that_is_far_off_explains_a_loss_like_guessing(run_path: Path) -> None:
    slow = [
        replace(step, scalars={**step.scalars, "learning_rate": 1e-8}) for step in TestNoBetterThanGuessing().sick()
    ]
    slow[0] = replace(slow[0], facts={**slow[0].facts, "optimizer": {"type": "Adam", "groups": [{"eps": 1e-8}]}})
    (finding,) = replay(build_run(run_path, slow), [RuleSpec(RULE)]).findings
    assert finding.symptoms == ("loss_at_guess", "rate_below_usual")
    assert finding.causes[0] == "learning_rate_too_low"


@pytest.mark.parametrize(("share", "found"), [(1.0, True), (0.8, False)])
def test_losses_of_rows_are_judged_where_the_loss_is_their_mean(run_path: Path, share: float, found: bool) -> None:
    """JAX's losses are those of rows; a mask or weights make something else than the mean of them."""
    random, made = np.random.default_rng(5), []
    for _ in range(120):
        guess_of_all, labels = 1e-3 * random.normal(size=(32, 4)), random.integers(0, 4, 32)
        sketches = judged("cross_entropy", guess_of_all, labels, unreduced=True)
        # Of a loss that is a little worse than a guess also where it is masked.
        loss = float(sketches["output_sketch"]["loss"]) * share + (1 - share) * 1.5
        made.append(Step(scalars={"loss": loss, "learning_rate": 0.1}, facts=sketches, weight=32.0))
    assert bool(replay(build_run(run_path, made), [RuleSpec(RULE)]).findings) is found
