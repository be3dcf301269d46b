"""What an evaluator makes of the claims of workers that are gone, and of those who write down their last steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clocks import Now
from watchglass.config import EvaluatorConfig
from watchglass.errors import CompactedError, StoreError
from watchglass.evaluate import Follower, Judging, replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.worker_liveness import WorkerLiveness
from watchglass.records import Status
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import (
    Claim,
    LocalStore,
    StoredObject,
    claim_worker,
    compact,
    layout,
    release_worker,
    this_process,
    write_launch_end,
)
from watchglass.store.compaction.pins import pins
from watchglass.testing import RunBuilder, Step, build_run

ELSEWHERE = replace(this_process(), host="another machine")


class Store(LocalStore):
    """A folder that lists nothing while it is unreachable."""

    unreachable = False

    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        if self.unreachable:
            raise StoreError("the store is unreachable")
        return super().list(prefix, after)


class Case:
    """A run whose one worker has joined, never left, and is claimed as said; with its evaluator."""

    def __init__(self, run_path: Path, claim: Claim, judging: Callable[..., Judging] = Judging) -> None:
        self.builder = RunBuilder(run_path)
        self.builder.step(scalars={"loss": 1.0})
        self.store, self.clock = Store(run_path), Now()
        release_worker(self.store, 0, "worker_0")
        claim_worker(self.store, 0, "worker_0", claim)
        self.config = EvaluatorConfig(str(run_path), None, (), lost_after_s=600.0)
        self.evaluator = Evaluator(self.config, store=self.store, judging=judging, clock=self.clock)
        self.evaluator.open(lambda seconds: True)
        while self.evaluator.turn():
            pass

    def over(self) -> bool:
        """Whether an evaluator whose lifeline is gone ends within a few looks at the run."""
        for _ in range(5):
            self.look_again()
            if not self.evaluator.turn() and self.evaluator.over(lifeline_open=False):
                return True
        return False

    def ended(self) -> str:
        """How the training ended, for a follower that takes a few looks."""
        for _ in range(5):
            self.look_again()
            self.evaluator.turn()
            if ended := self.evaluator.ended():
                return ended
        return ""

    def look_again(self) -> None:
        """It is time for another look at claims."""
        self.clock.advance(self.store.policy.intervals().liveness_s)

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


def test_a_living_worker_is_waited_for(claimed: Make) -> None:
    case = claimed(this_process())
    assert not case.over()
    assert case.ended() == ""


def test_a_dead_one_is_not(claimed: Make) -> None:
    assert claimed(replace(this_process(), pid=2**22 + 5, process_start=0)).over()


def test_a_process_that_recovers_its_last_steps_is_waited_for_but_not_for_ever(claimed: Make) -> None:
    case = claimed(replace(this_process(), harvest=True))
    assert not case.over()
    case.clock.advance(31.0)
    assert case.over()


def test_a_process_that_recovers_last_steps_is_never_stopped(claimed: Make) -> None:
    """Else the launcher would get the signal that is meant for the training."""
    case = claimed(replace(this_process(), harvest=True))
    liveness, follower = WorkerLiveness(case.store, case.config, list, case.clock), Follower(case.store)
    liveness.look(0.0)
    list(follower.poll(full=True))
    assert [worker.active for worker in liveness.workers(follower.workers.values())] == [False]


def test_a_worker_on_another_machine_is_lost_after_long_silence(claimed: Make) -> None:
    case = claimed(ELSEWHERE)
    case.clock.advance(590.0)
    assert case.ended() == ""
    case.clock.advance(30.0)
    assert case.ended() == "lost"
    assert case.observed() == ["worker_lost"]
    assert replay(case.store).ended


def test_one_whose_launcher_saw_it_end_is_not_waited_for_so_long(claimed: Make) -> None:
    case = claimed(ELSEWHERE)
    write_launch_end(case.store, 0, rank=0, world_size=1, exit_status=137)
    case.clock.advance(30.0)
    case.ended()
    case.clock.advance(31.0)
    assert case.ended() == "lost"


def test_the_launcher_of_another_rank_says_nothing_about_it(claimed: Make) -> None:
    case = claimed(ELSEWHERE)
    write_launch_end(case.store, 0, rank=1, world_size=2, exit_status=0)
    case.clock.advance(120.0)
    assert case.ended() == ""


def test_silence_of_a_store_that_was_unreachable_is_no_silence_of_a_worker(claimed: Make) -> None:
    case = claimed(ELSEWHERE)
    case.store.unreachable = True
    case.look_again()
    assert not case.evaluator.turn()
    case.clock.advance(1.0)
    assert case.evaluator.unreachable_s > 0
    case.store.unreachable = False
    case.clock.advance(3600.0)
    assert case.ended() == ""
    assert case.observed() == []
    case.clock.advance(640.0)
    assert case.ended() == "lost"


def test_a_folder_that_refuses_after_the_end_of_the_run_is_not_waited_for_long(claimed: Make) -> None:
    """A disk that is full stays so, and the user waits for the end of the launcher."""
    case = claimed(this_process())
    case.store.unreachable = True
    case.look_again()
    assert not case.evaluator.turn()
    assert not case.evaluator.over(lifeline_open=False)
    case.clock.advance(6.0)
    assert not case.evaluator.over(lifeline_open=True)
    assert case.evaluator.over(lifeline_open=False)


def test_a_worker_that_has_claimed_its_place_and_written_nothing_yet_is_waited_for(claimed: Make) -> None:
    case = claimed(this_process())
    claim_worker(case.store, 0, "worker_1", ELSEWHERE)
    case.builder.leave()
    case.ended()
    case.clock.advance(60.0)
    assert case.ended() == ""
    case.clock.advance(700.0)
    assert case.ended() == "finished"


def test_one_that_never_wrote_and_whose_launcher_saw_it_end_is_not(claimed: Make) -> None:
    case = claimed(this_process())
    claim_worker(case.store, 0, "worker_1", ELSEWHERE)
    write_launch_end(case.store, 0, rank=1, world_size=2, exit_status=0)
    case.builder.leave()
    case.ended()
    case.clock.advance(60.0)
    assert case.ended() == "finished"


def test_who_was_lost_and_writes_again_is_followed_on(claimed: Make) -> None:
    case = claimed(ELSEWHERE)
    case.clock.advance(640.0)
    case.ended()
    assert case.observed() == ["worker_lost"]
    case.builder.step(scalars={"loss": 2.0})
    assert case.evaluator.turn()
    assert case.observed() == ["worker_lost", "worker_returned"]
    assert not replay(case.store).ended
    assert case.ended() == ""
    case.builder.leave()
    case.evaluator.turn()
    case.clock.advance(10.0)
    assert case.ended() == "finished"
    assert case.evaluator.evaluation().train_steps == 2


def test_a_worker_of_an_earlier_attempt_that_never_left_holds_nothing_up(run_path: Path) -> None:
    RunBuilder(run_path, alive=False).step(scalars={"loss": 1.0})
    with RunBuilder(run_path) as resumed:
        resumed.step(scalars={"loss": 1.0})
        resumed.leave()
    clock = Now()
    evaluator = Evaluator(EvaluatorConfig(str(run_path), None, default_rules()), clock=clock)
    evaluator.open(lambda seconds: True)
    while evaluator.turn():
        pass
    clock.advance(5.0)
    assert evaluator.ended() == "finished"
    evaluator.finish()
    assert evaluator.evaluation().ended
    assert Status.IN_PROGRESS not in {status.status for status in open_run(run_path).journal.statuses}


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_compacted_under_the_reader_is_read_again(run_path: Path, times: int) -> None:
    build_run(run_path, [Step(scalars={"loss": float("nan") if n > 5 else 1.0}) for n in range(9)])
    expected = [finding.to_json() for finding in replay(run_path).findings]

    class Compacting(LocalStore):
        lists = 0

        def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
            # After the first poll has given frames, so that what was made of them must be discarded.
            self.lists += prefix == layout.segments(0)
            if prefix == layout.segments(0) and 1 < self.lists <= 1 + times:
                raise CompactedError("compacted while it was read")
            return super().list(prefix, after)

    store = Compacting(run_path)
    assert [finding.to_json() for finding in replay(store).findings] == expected
    assert store.lists > 1 + times
    store = Compacting(run_path)
    evaluator = Evaluator(EvaluatorConfig(str(run_path), None, default_rules()), store=store)
    evaluator.open(lambda seconds: True)
    while evaluator.turn():
        pass
    evaluator.finish()
    assert store.lists > 1 + times
    assert [finding.to_json() for finding in open_run(run_path).journal.findings] == expected


def test_who_begins_again_holds_what_it_reads_then(run_path: Path) -> None:
    """Also where it was compacted between the last look for news and the look for the dead."""

    class Compacted(Judging):
        raised = False

        def drained(self) -> bool:
            if not Compacted.raised:
                Compacted.raised = True
                raise CompactedError("compacted while it was read")
            return super().drained()

    case = Case(run_path, replace(this_process(), pid=2**22 + 5, process_start=0), Compacted)
    compact(case.store)
    assert [each.generation for each in pins(case.store)] == [0]
    assert case.over()
    assert Compacted.raised
    assert [each.generation for each in pins(case.store)] == [1]
    case.evaluator.close()
