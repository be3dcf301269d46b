"""Runs of two ranks for the tests of rules that compare ranks: made of numbers, or trained by two processes."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import ranks
import watchglass
from real_runs import Watch
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Finding, Severity
from watchglass.rules import capture_for, default_rules
from watchglass.testing import Step

MODULES = {"first": "Linear", "second": "Linear"}
Make = Any


def pair(steps: int, weight: Make, gradient: Make, facts: Make = lambda n, rank: {}) -> list[Step]:
    """Steps of two ranks with two weights; ``weight(n, rank)`` and ``gradient(n, rank)`` are those of the second."""
    made = []
    for n in range(steps):
        for rank in range(2):
            second, its_gradient = (np.asarray(make(n, rank), float) for make in (weight, gradient))
            statistics = {
                "first.weight": np.full((2, 2), 0.1 + n), "gradient/first.weight": np.full((2, 2), 0.5),
                "second.weight": second, "gradient/second.weight": its_gradient,
            }  # fmt: skip
            data = facts(n, rank)
            made.append(Step(scalars={"loss": 1.0}, statistics=statistics, facts=data, workers=[rank]))
    return made


def ones(n: int, rank: int) -> list[list[float]]:
    return [[1.0 + n, 2.0], [3.0, 4.0]]


class TwoRanks:
    """Records a real run of two ranks, in place of the methods of :class:`RealRuns`."""

    training: ClassVar[Any]
    fault: ClassVar[str]

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError("two processes train")

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        training = functools.partial(type(self).training, self.fault if sick else "")
        # Ranks meet at a file: its path must be absolute, and addresses from an earlier run must not be in it.
        with tempfile.TemporaryDirectory() as folder:
            ranks.run_ranks(training, Path(folder), run, **capture)


def judged(folder: Path, training: Any, fault: str) -> tuple[list[Finding], list[str]]:
    """Findings above info of all default rules, and the causes of the first diagnosis."""
    run = folder / "run"
    capture = {**capture_for(default_rules()), "save_interval": 1}
    ranks.run_ranks(functools.partial(training, fault), folder / "ranks", run, **capture)
    evaluation = replay(str(run), default_rules())
    found = [finding for finding in evaluation.findings if finding.severity is not Severity.INFO]
    diagnoses = verdict(watchglass.open_run(run), evaluation).diagnoses
    return found, [cause.cause.id for cause in diagnoses[0].causes] if diagnoses else []
