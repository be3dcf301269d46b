"""ReplicaDivergence, GradientsSummedOverRanks and RanksRepeatData: two ranks of one run, compared."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import rank_faults
import ranks
import watchglass
from preloaded import Preloaded
from real_runs import RealRuns, Watch
from watchglass.config import RuleSpec
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Finding, Severity
from watchglass.rules import capture_for, default_rules, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

TESTS = Path(ranks.__file__).parent
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


class TestRanksRepeatData(RuleSuite):
    rule = find_rule("RanksRepeatData")
    workers = 2
    modules = MODULES

    def batches(self, number: Make) -> list[Step]:
        def facts(n: int, rank: int) -> dict[str, Any]:
            return {"batch": {"hashes": [f"{number(n, rank):016x}"], "varied": 300, "iterations": {}}}

        return pair(10, ones, ones, facts)

    def sick(self) -> Sequence[Step]:
        return self.batches(lambda n, rank: n)

    def healthy(self) -> Sequence[Step]:
        return self.batches(lambda n, rank: 2 * n + rank)

    def test_data_that_never_change_say_nothing(self, tmp_path: Path) -> None:
        assert self.serious(self.build(tmp_path / "run", self.batches(lambda n, rank: 7))) == []


class TestGradientsSummedOverRanks(RuleSuite):
    rule = find_rule("GradientsSummedOverRanks")
    workers = 2
    modules = MODULES

    def exchanged(self, factor: float) -> list[Step]:
        def facts(n: int, rank: int) -> dict[str, Any]:
            ranks_have = np.array([[1.0, 2.0 + n, 3.0, 4.0], [0.5, -1.0, 2.0, n]])
            used = factor * ranks_have.sum(0)
            samples = {"own": ranks_have[rank].tolist(), "used": used.tolist()}
            return {"rank_gradients": {"processes": 2, "parameter": "second.weight", **samples}}

        steps = pair(10, ones, ones, facts)
        return [Step(**{**vars(step), "scalars": {"loss": 1.0, "loss/cross_entropy": 1.0}}) for step in steps]

    def sick(self) -> Sequence[Step]:
        return self.exchanged(1.0)

    def healthy(self) -> Sequence[Step]:
        return self.exchanged(0.5)


# -- two processes -----------------------------------------------------------------------------------------------------


class TwoRanks:
    """Records a real run of two ranks, in place of the methods of :class:`RealRuns`."""

    training: ClassVar[Any]
    fault: ClassVar[str]

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError("two processes train")

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        training = functools.partial(type(self).training, self.fault if sick else "")
        ranks.run_ranks(training, run.parent / "ranks", run, **capture)


@pytest.mark.slow
class TestReplicaDivergenceInRealRuns(RealRuns):
    rule = "ReplicaDivergence"
    cause = "replica_changed"
    training, fault = rank_faults.wrapped, "changed"
    train, record = TwoRanks.train, TwoRanks.record


@pytest.mark.slow
class TestRanksRepeatDataInRealRuns(RealRuns):
    rule = "RanksRepeatData"
    cause = "ranks_see_same_data"
    training, fault = rank_faults.wrapped, "same_data"
    train, record = TwoRanks.train, TwoRanks.record


@pytest.mark.slow
class TestGradientsSummedOverRanksInRealRuns(RealRuns):
    rule = "GradientsSummedOverRanks"
    cause = "gradients_summed_over_ranks"
    training, fault = rank_faults.by_hand, "sum"
    train, record = TwoRanks.train, TwoRanks.record


def judged(folder: Path, training: Any, fault: str) -> tuple[list[Finding], list[str]]:
    """Findings above info of all default rules, and the causes of the first diagnosis."""
    run = folder / "run"
    capture = {**capture_for(default_rules()), "save_interval": 1}
    ranks.run_ranks(functools.partial(training, fault), folder / "ranks", run, **capture)
    evaluation = replay(str(run), default_rules())
    found = [finding for finding in evaluation.findings if finding.severity is not Severity.INFO]
    diagnoses = verdict(watchglass.open_run(run), evaluation).diagnoses
    return found, [cause.cause.id for cause in diagnoses[0].causes] if diagnoses else []


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
@pytest.mark.parametrize("healthy", ["divided_loss", "local_sgd", "parts", "sum_for_adam"])
def test_ranks_that_differ_as_they_should_get_no_alarm(tmp_path: Path, healthy: str) -> None:
    assert judged(tmp_path, rank_faults.by_hand, healthy)[0] == []


@pytest.mark.slow
def test_parameters_that_were_unfrozen_after_wrapping_are_not_averaged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    capture = {**capture_for(default_rules()), "save_interval": 1}
    training = functools.partial(rank_faults.wrapped, "unfrozen")
    ranks.run_ranks(training, tmp_path / "ranks", run, **capture)
    (found,) = replay(str(run), [RuleSpec("ReplicaDivergence", {"patience": 10})]).findings
    assert "the gradients of 2 of 6 parameters are not averaged" in found.message
    assert found.what_to_try == ("Wrap the model after all its parameters are there and trainable",)


SCRIPT = """
import sys
import torch, torch.distributed as dist
import rank_faults
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
getattr(rank_faults, sys.argv[1])(sys.argv[2], dist.get_rank(), lambda model: None)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "fault", "causes"),
    [
        ("wrapped", "changed", {"replica_changed"}),
        ("wrapped", "bypass", {"gradients_not_averaged"}),
        ("wrapped", "same_data", {"ranks_see_same_data"}),
        ("wrapped", "", set()),
        ("by_hand", "seed", {"ranks_initialized_differently"}),
        ("by_hand", "skip", {"ranks_out_of_step"}),
        ("by_hand", "sum", {"gradients_summed_over_ranks"}),
        ("by_hand", "", set()),
    ],
)
def test_live_under_torchrun(tmp_path: Path, preloaded: Preloaded, training: str, fault: str, causes: set[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = ["-m", "watchglass", "run", "--run-dir", str(tmp_path / "run"), "--save-interval", "1"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "WATCHGLASS_STRICT": "1"}
    command = [str(preloaded.python), *torchrun, *run, str(script), training, fault]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    live = [each for each in watchglass.open_run(tmp_path / "run").journal.findings if each.severity.value != "info"]
    assert {each.causes[0] for each in live} == causes
