"""ReplicaDivergence: the weights of two ranks come apart."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rank_faults
import ranks
from rank_runs import MODULES, TwoRanks, judged, ones, pair
from real_runs import RealRuns
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, default_rules, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def own(n: int, rank: int) -> list[list[float]]:
    return [[1.0 + n, 2.0 + rank * (n + 1)], [3.0, 4.0]]


class TestReplicaDivergence(RuleSuite):
    rule = find_rule("ReplicaDivergence")
    workers = 2
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        """One weight of one rank changes by a millionth while gradients agree."""
        return pair(10, lambda n, rank: [[1.0, 2.0], [3.0, 4.0 + 1e-6 * (rank and n > 5)]], ones)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            pair(10, lambda n, rank: [[rank, 2.0], [3.0, 4.0]], ones),
            pair(10, lambda n, rank: ones(n, rank) if n == 0 else own(n, rank), own),
        )

    def healthy(self) -> Sequence[Step]:
        return pair(10, ones, ones)


@pytest.mark.slow
class TestReplicaDivergenceInRealRuns(RealRuns):
    rule = "ReplicaDivergence"
    cause = "replica_changed"
    training, fault = rank_faults.wrapped, "changed"
    train, record = TwoRanks.train, TwoRanks.record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "fault", "cause", "words"),
    [
        (rank_faults.wrapped, "bypass", "gradients_not_averaged", "calls the module inside it"),
        (rank_faults.wrapped, "no_sync", "gradients_not_averaged", "every backward runs inside no_sync()"),
        (rank_faults.by_hand, "forgotten", "gradients_not_averaged", "nothing averages them"),
        (rank_faults.by_hand, "seed", "ranks_initialized_differently", "differ between ranks from the first step on"),
        (rank_faults.by_hand, "skip", "ranks_out_of_step", "a rank has left out an update"),
    ],
)
def test_each_way_to_come_apart_has_its_cause(
    tmp_path: Path, training: Any, fault: str, cause: str, words: str
) -> None:
    found, causes = judged(tmp_path, training, fault)
    assert [finding.rule for finding in found] == ["ReplicaDivergence"]
    assert words in found[0].message
    assert causes[0] == cause


@pytest.mark.slow
def test_parameters_that_were_unfrozen_after_wrapping_are_not_averaged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    capture = {**capture_for(default_rules()), "save_interval": 1}
    training = functools.partial(rank_faults.wrapped, "unfrozen")
    ranks.run_ranks(training, tmp_path / "ranks", run, **capture)
    (found,) = replay(str(run), [RuleSpec("ReplicaDivergence", {"patience": 10})]).findings
    assert "the gradients of 2 of 6 parameters are not averaged" in found.message
    assert found.what_to_try == ("Wrap the model after all its parameters are there and trainable",)
