"""What an evaluator makes of the claims of workers that are gone, and of those who write down their last steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.config import EvaluatorConfig
from watchglass.errors import CompactedError, StoreError
from watchglass.evaluate import replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Status
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import (
    Claim,
    LocalStore,
    RunReader,
    claim_worker,
    compact,
    release_worker,
    this_process,
    write_launch_end,
)
from watchglass.store.compaction.pins import pins
from watchglass.testing import RunBuilder, Step, build_run

ELSEWHERE = replace(this_process(), host="another machine")


class Case:
    """A run whose one worker has joined, never left, and is claimed as said; with its evaluator."""

    def __init__(self, run_path: Path, claim: Claim) -> None:
        self.builder = RunBuilder(run_path)
        self.builder.step(scalars={"loss": 1.0})
        self.store = LocalStore(run_path)
        release_worker(self.store, 0, "worker_0")
        claim_worker(self.store, 0, "worker_0", claim)
        self.evaluator = Evaluator(EvaluatorConfig(str(run_path), None, (), lost_after_s=600.0))
        self.evaluator.open(lambda seconds: True)
        while self.evaluator.turn():
            pass

    def over(self) -> bool:
        """Whether an evaluator whose lifeline is gone ends within a few looks at the run."""
        for _ in range(5):
            self.evaluator._liveness._looked_s = float("-inf")
            if not self.evaluator.turn() and self.evaluator.over(lifeline_open=False):
                return True
        return False

    def ended(self) -> str:
        """How the training ended, for a follower that takes a few looks."""
        for _ in range(5):
            self.evaluator._liveness._looked_s = float("-inf")
            self.evaluator.turn()
            if ended := self.evaluator.ended():
                return ended
        return ""

    def observed(self) -> list[str]:
        return [observation.kind for observation in open_run(self.store.location).journal.observations]


Make = Callable[[Claim], Case]


@pytest.fixture
def claimed(run_path: Path) -> Iterator[Make]:
    made: list[Case] = []

    def make(claim: Claim) -> Case:
        made.append(Case(run_path, claim))
        return made[-1]

    yield make
    for case in made:
        case.evaluator.close()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clocks on by so many seconds."""

    def move(seconds: float) -> None:
        now, wall = time.monotonic(), time.time_ns()
        monkeypatch.setattr("time.monotonic", lambda: now + seconds)
        monkeypatch.setattr("watchglass.evaluate.live.worker_liveness.time.time_ns", lambda: wall + int(seconds * 1e9))

    return move


def test_a_living_worker_is_waited_for(claimed: Make) -> None:
    case = claimed(this_process())
    assert not case.over()
    assert case.ended() == ""


def test_a_dead_one_is_not(claimed: Make) -> None:
    assert claimed(replace(this_process(), pid=2**22 + 5, process_start=0)).over()


def test_somebody_who_recovers_its_last_steps_is_waited_for_but_not_for_ever(claimed: Make, later) -> None:
    case = claimed(replace(this_process(), harvest=True))
    assert not case.over()
    later(31.0)
    assert case.over()


def test_somebody_who_recovers_last_steps_is_never_stopped(claimed: Make) -> None:
    """Else the launcher would get the signal that is meant for the training."""
    evaluator = claimed(replace(this_process(), harvest=True)).evaluator
    assert [worker.active for worker in evaluator._liveness.workers(evaluator._judging.workers.values())] == [False]


def test_a_worker_on_another_machine_is_lost_after_long_silence(claimed: Make, later) -> None:
    case = claimed(ELSEWHERE)
    later(599.0)
    assert case.ended() == ""
    later(30.0)
    assert case.ended() == "lost"
    assert case.observed() == ["worker_lost"]
    assert replay(case.store).ended


def test_one_whose_launcher_saw_it_end_is_not_waited_for_so_long(claimed: Make, later) -> None:
    case = claimed(ELSEWHERE)
    write_launch_end(case.store, 0, rank=0, world_size=1, exit_status=137)
    later(30.0)
    case.ended()
    later(31.0)
    assert case.ended() == "lost"


def test_the_launcher_of_another_rank_says_nothing_about_it(claimed: Make, later) -> None:
    case = claimed(ELSEWHERE)
    write_launch_end(case.store, 0, rank=1, world_size=2, exit_status=0)
    later(120.0)
    assert case.ended() == ""


def test_silence_of_a_store_that_was_away_is_no_silence_of_a_worker(
    claimed: Make, later, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = claimed(ELSEWHERE)

    def away(*words: object, **named: object) -> None:
        raise StoreError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "list", away)
        assert not case.evaluator.turn()
        assert case.evaluator.unreachable_s > 0
    later(3600.0)
    assert case.ended() == ""
    assert case.observed() == []
    later(640.0)
    assert case.ended() == "lost"


def test_a_worker_that_has_claimed_its_place_and_written_nothing_yet_is_waited_for(claimed: Make, later) -> None:
    case = claimed(this_process())
    claim_worker(case.store, 0, "worker_1", ELSEWHERE)
    case.builder.leave()
    case.ended()
    later(60.0)
    assert case.ended() == ""
    later(700.0)
    assert case.ended() == "finished"


def test_one_that_never_wrote_and_whose_launcher_saw_it_end_is_not(claimed: Make, later) -> None:
    case = claimed(this_process())
    claim_worker(case.store, 0, "worker_1", ELSEWHERE)
    write_launch_end(case.store, 0, rank=1, world_size=2, exit_status=0)
    case.builder.leave()
    case.ended()
    later(60.0)
    assert case.ended() == "finished"


def test_who_was_lost_and_writes_again_is_followed_on(claimed: Make, later) -> None:
    case = claimed(ELSEWHERE)
    later(640.0)
    case.ended()
    assert case.observed() == ["worker_lost"]
    case.builder.step(scalars={"loss": 2.0})
    assert case.evaluator.turn()
    assert case.observed() == ["worker_lost", "worker_returned"]
    assert not replay(case.store).ended
    assert case.ended() == ""
    case.builder.leave()
    case.evaluator.turn()
    later(10.0)
    assert case.ended() == "finished"
    assert case.evaluator.evaluation().train_steps == 2


def test_a_worker_of_an_earlier_attempt_that_never_left_holds_nothing_up(run_path: Path, later) -> None:
    RunBuilder(run_path, alive=False).step(scalars={"loss": 1.0})
    with RunBuilder(run_path) as resumed:
        resumed.step(scalars={"loss": 1.0})
        resumed.leave()
    evaluator = Evaluator(EvaluatorConfig(str(run_path), None, default_rules()))
    evaluator.open(lambda seconds: True)
    while evaluator.turn():
        pass
    later(5.0)
    assert evaluator.ended() == "finished"
    evaluator.finish()
    assert evaluator.evaluation().ended
    assert Status.IN_PROGRESS not in {status.status for status in open_run(run_path).journal.statuses}


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_compacted_under_the_reader_is_read_again(
    run_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_run(run_path, [Step(scalars={"loss": float("nan") if n > 5 else 1.0}) for n in range(9)])
    expected = [finding.to_json() for finding in replay(run_path).findings]
    calls = itertools.count()
    poll = RunReader.poll

    def compacting(reader: RunReader, *words: object, **named: object):
        # After the first poll has given frames, so that what was made of them must be thrown away.
        if next(calls) in range(1, 1 + times):
            raise CompactedError("compacted while it was read")
        return poll(reader, *words, **named)

    monkeypatch.setattr(RunReader, "poll", compacting)
    assert [finding.to_json() for finding in replay(run_path).findings] == expected
    calls = itertools.count()
    evaluator = Evaluator(EvaluatorConfig(str(run_path), None, default_rules()))
    evaluator.open(lambda seconds: True)
    while evaluator.turn():
        pass
    evaluator.finish()
    assert [finding.to_json() for finding in open_run(run_path).journal.findings] == expected


def test_who_begins_again_holds_what_it_reads_then(claimed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was compacted between the last look for news and the look for the dead."""
    case = claimed(replace(this_process(), pid=2**22 + 5, process_start=0))
    compact(case.store)
    assert [each.generation for each in pins(case.store)] == [0]
    poll, calls = RunReader.poll, itertools.count()

    def compacting(reader: RunReader, *words: object, full: bool = False, **named: object):
        if full and not next(calls):
            raise CompactedError("compacted while it was read")
        return poll(reader, *words, full=full, **named)

    monkeypatch.setattr(RunReader, "poll", compacting)
    assert case.over()
    assert [each.generation for each in pins(case.store)] == [1]
