"""Underfit: a model of few units that has learned what it can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_runs import RealRuns, Watch, update
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import ModuleKind
from watchglass.records.facts import ForwardLayers
from watchglass.rules import find_rule
from watchglass.rules.classic.underfit import end_of
from watchglass.rules.graph.forward import ForwardGraph
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def steps(
    loss: float, units: int, *, alike: float = 0.0, errors: float = 0.0, late: bool = True, moves: float = 1e-3,
    until: int = 300, falls: float = 0.95
) -> list[Step]:  # fmt: skip
    """A loss that falls from 1.4 and stays, in a model of this width for four classes.

    Args:
        loss: Where it stays.
        units: Units of the hidden layer.
        alike: How similar the targets of similar samples are.
        errors: How similar their errors are.
        late: Whether that is known of the second half of the run.
        moves: Update over weight.
        until: Step at which a schedule ends.
        falls: Part of its fall that a step leaves.
    """
    random = np.random.default_rng(0)
    weights = {"first.weight": random.normal(size=(units, 8)), "last.weight": random.normal(size=(4, units))}
    arrays = {**weights, **{f"update/{name}": moves * weight for name, weight in weights.items()}}
    stays = {**weights, **{f"update/{name}": 1e-9 * weight for name, weight in weights.items()}}
    facts: dict[str, Any] = {
        "output_sketch": {"number": 1, "rows": 32, "neighbours": {"rows": 32, "targets": alike, "errors": errors}},
        "target_sketch": {
            "function": "cross_entropy", "number": 1, "rows": 32, "columns": 4, "kind": "classes",
            "counts": [[each, 8] for each in range(4)],
        },
    }  # fmt: skip
    return [
        Step(
            scalars={"loss": loss + (1.4 - loss) * falls**n + 0.02 * random.normal(), "accuracy": 0.5},
            statistics=arrays if n < until else stays,
            facts={} if n % 10 or (n >= 150 and not late) else facts,
        )
        for n in range(300)
    ]


class TestUnderfit(RuleSuite):
    rule = find_rule("Underfit")
    modules = {"first": ModuleKind.LINEAR, "last": ModuleKind.LINEAR}  # noqa: RUF012

    def sick(self) -> Sequence[Step]:
        return steps(0.9, units=2)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # A look at the most similar sample gives 0.7.
        return (steps(0.9, units=12, alike=0.7), steps(0.5, units=12, alike=0.7, errors=0.5))

    def healthy(self) -> Sequence[Step]:
        # As high, but the task is noisy: similar samples do not tell more.
        return steps(0.9, units=12, alike=0.3)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (steps(0.9, units=4), False),
        (steps(0.9, units=32, alike=0.7), False),
        (steps(1.38, units=12, alike=0.7), False),
        (steps(1.38, units=2, alike=0.7), True),
        (steps(0.9, units=2, alike=0.7, moves=1e-6), False),
        (steps(0.9, units=2, alike=0.7, until=240), True),
        (steps(0.9, units=2, alike=0.7, until=100), False),
        (steps(0.3, units=2, alike=0.7), False),
        (steps(0.5, units=12, alike=0.7, errors=0.1), False),
        # A look at the most similar sample gives far less, and the loss still falls a little.
        (steps(0.9, units=12, alike=0.95, falls=0.985), True),
        (steps(0.9, units=12, alike=0.7, falls=0.985), False),
        # The loss has settled before the last sketch.
        (steps(0.5, units=12, alike=0.7, errors=0.5, late=False), True),
        (steps(0.5, units=12, alike=0.7, errors=0.5, late=False, falls=0.985), False),
        (steps(0.5, units=32, alike=0.7, errors=0.5), False),
    ],
)
def test_a_model_is_small_for_what_similar_samples_tell(run_path: Path, given: list[Step], found: bool) -> None:
    run = build_run(run_path, given, modules=TestUnderfit.modules)
    assert bool(replay(run, [RuleSpec("Underfit")]).findings) is found


@pytest.mark.parametrize(
    ("layers", "pairs", "narrowest"),
    [
        ([(64, 32), (32, 1), (1, 32), (32, 10)], [(0, 1), (1, 2), (2, 3)], 1.0),
        # A gate, beside the layer that it multiplies.
        ([(64, 32), (32, 1), (32, 32), (32, 10)], [(0, 1), (0, 2), (1, 3), (2, 3)], 32.0),
        # The input, or another layer, goes into the third one as well.
        ([(64, 32), (32, 1), (65, 10)], [(0, 1), (1, 2)], 32.0),
        ([(64, 10)], [], float("inf")),
    ],
)
def test_what_everything_goes_through(
    layers: list[tuple[int, int]], pairs: list[tuple[int, int]], narrowest: float
) -> None:
    fact = ForwardLayers(
        layers=tuple((f"{at}.weight", "linear", *each) for at, each in enumerate(layers)),
        pairs=tuple((*each, "relu") for each in pairs),
    )
    assert ForwardGraph(fact).narrowest() == narrowest


class TestUnderfitInRealRuns(RealRuns):
    rule = "Underfit"
    cause = "model_too_small"

    def train(self, watch: Watch, *, sick: bool) -> None:
        units = 1 if sick else 32
        model = nn.Sequential(nn.Linear(8, units), nn.Tanh(), nn.Linear(units, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        watch(model)
        for _ in range(200):
            inputs = torch.randn(64, 8)
            update(model, optimizer, inputs, inputs[:, :4].argmax(1))


class Factors(nn.Module):
    """The product of two embeddings."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(20, units), nn.Embedding(20, units)
        self.scale = nn.Linear(units, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        result: Tensor = self.scale(self.rows(pairs[:, 0]) * self.columns(pairs[:, 1]))
        return result


class TestOneFactorInRealRuns(RealRuns):
    rule = "Underfit"
    cause = "model_too_small"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A table of rank three. Its rows and columns are tokens, so no sample is similar to another one."""
        table = torch.randn(20, 3) @ torch.randn(3, 20)
        model = Factors(1 if sick else 12)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(1000):
            pairs = torch.randint(20, (64, 2))
            optimizer.zero_grad()
            F.mse_loss(model(pairs), table[pairs[:, 0], pairs[:, 1], None]).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("losses", "end"),
    [((2.3, 1.3, 1.0), 0.87), ((2.0, 1.0, 0.5), 0.0), ((2.0, 1.0, 0.4), -math.inf), ((2.0, 1.0, 1.1), 1.1)],
)
def test_a_fall_that_slows_down_has_an_end(losses: tuple[float, float, float], end: float) -> None:
    assert end_of(*losses) == pytest.approx(end, abs=5e-3)
