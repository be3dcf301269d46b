"""What an evaluator makes of the claims of workers that are gone, and of those who write down their last steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.config import EvaluatorConfig
from watchglass.evaluate.process import Evaluator
from watchglass.store import Claim, LocalStore, claim_worker, release_worker, this_process
from watchglass.testing import RunBuilder

Claimed = Callable[[Claim], Evaluator]


@pytest.fixture
def claimed(run_path: Path) -> Iterator[Claimed]:
    """An evaluator of a run whose one worker has joined, never left, and is claimed as said."""
    opened: list[Evaluator] = []

    def make(claim: Claim) -> Evaluator:
        builder = RunBuilder(run_path)
        builder.step(scalars={"loss": 1.0})
        store = LocalStore(run_path)
        release_worker(store, 0, "worker_0")
        claim_worker(store, 0, "worker_0", claim)
        evaluator = Evaluator(EvaluatorConfig(str(run_path), 0, ()))
        opened.append(evaluator)
        evaluator.open(lambda seconds: True)
        while evaluator.turn():
            pass
        return evaluator

    yield make
    for evaluator in opened:
        evaluator.close()


def ends(evaluator: Evaluator) -> bool:
    """Whether it ends within a few looks at the run."""
    for _ in range(5):
        evaluator._looked_s = float("-inf")
        if not evaluator.turn() and evaluator.over(lifeline_open=False):
            return True
    return False


def test_a_living_worker_is_waited_for(claimed: Claimed) -> None:
    assert not ends(claimed(this_process()))


def test_a_dead_one_is_not(claimed: Claimed) -> None:
    assert ends(claimed(replace(this_process(), pid=2**22 + 5, process_start=0)))


def test_somebody_who_recovers_its_last_steps_is_waited_for_but_not_for_ever(
    claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = claimed(replace(this_process(), harvest=True))
    assert not ends(evaluator)
    now = time.time_ns()
    monkeypatch.setattr("watchglass.evaluate.process.time.time_ns", lambda: now + 31_000_000_000)
    assert ends(evaluator)


def test_somebody_who_recovers_last_steps_is_never_stopped(claimed: Claimed) -> None:
    """Else the launcher would get the signal that is meant for the training."""
    evaluator = claimed(replace(this_process(), harvest=True))
    assert [worker.active for worker in evaluator._workers()] == [False]
