"""How a run ended, from what launchers and workers say and from the silence of those that died."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchglass.records import Failure, Observation
from watchglass.run import Ending, ending_of, open_run, state_of
from watchglass.store import LocalStore, write_launch_end
from watchglass.testing import RunBuilder, Step, build_run

STEPS = [Step(scalars={"loss": 1.0}), Step(scalars={"loss": 0.5})]
BAD = Failure("exception", "ValueError", "bad batch", "train.py", 12, "check(batch)", wall_ns=10)


def launched(path: Path, exit_status: int, *, rank: int = 0, ranks: int = 1, **more: object) -> None:
    store = LocalStore(path)
    write_launch_end(store, 0, rank=rank, world_size=ranks, exit_status=exit_status, **more)  # type: ignore[arg-type]


def test_a_run_that_finished_has_not_failed(run_path: Path) -> None:
    build_run(run_path, STEPS)
    launched(run_path, 0)
    assert ending_of(open_run(run_path)) == Ending(over=True, failure=None)


def test_a_launcher_reports_what_came_after_the_last_step(run_path: Path) -> None:
    build_run(run_path, STEPS)
    launched(run_path, 1, failure=BAD)
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert (found.type, found.line, found.exit_status) == ("ValueError", 12, 1)
    assert state_of(open_run(run_path)) == "failed"


@pytest.mark.parametrize(("status", "kind"), [(3, "exit"), (137, "signal")])
def test_without_an_exception_the_exit_status_says_it(run_path: Path, status: int, kind: str) -> None:
    build_run(run_path, STEPS)
    launched(run_path, status)
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert (found.kind, found.exit_status) == (kind, status)


def test_a_stop_that_was_asked_for_is_no_failure(run_path: Path) -> None:
    build_run(run_path, STEPS, status="stopped")
    launched(run_path, 86)
    assert ending_of(open_run(run_path)).failure is None


def test_a_run_fails_before_its_first_step(run_path: Path) -> None:
    with RunBuilder(run_path, workers=0):
        launched(run_path, 1, failure=BAD)
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert found.message == "bad batch"
    assert state_of(open_run(run_path)) == "failed"


def test_a_worker_that_was_killed_is_lost(run_path: Path) -> None:
    build_run(run_path, STEPS, status=None)
    ending = ending_of(open_run(run_path))
    assert ending.failure == Failure("lost", worker="worker_0")
    assert state_of(open_run(run_path)) == "lost"


def test_a_launcher_reports_by_which_signal_a_process_ended_without_a_word(run_path: Path) -> None:
    """SIGTERM, from a scheduler at its limit."""
    build_run(run_path, STEPS, status=None)
    launched(run_path, 143, pid=os.getpid())
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert (found.kind, found.exit_status) == ("signal", 143)
    assert state_of(open_run(run_path)) == "failed"  # "lost" is a process of which nothing is known


def test_a_process_that_leaves_without_a_word_and_with_status_0_ended_well(run_path: Path) -> None:
    """os._exit(0) at the end of a script."""
    build_run(run_path, STEPS, status=None)
    launched(run_path, 0, pid=os.getpid())
    assert ending_of(open_run(run_path)) == Ending(over=True, failure=None)
    assert state_of(open_run(run_path)) == "finished"


def test_a_script_that_ends_well_has_not_failed_with_a_process_that_it_terminated(run_path: Path) -> None:
    """A pool terminates its processes as it is left."""
    build_run(run_path, STEPS, status=None, workers=2)
    launched(run_path, 0, pid=os.getpid() + 1)
    early = Failure("lost", worker="worker_0"), Failure("lost", worker="worker_1")
    assert ending_of(open_run(run_path)) == Ending(over=True, failure=None, early=early)
    assert state_of(open_run(run_path)) == "finished"
    assert repr(open_run(run_path)).endswith("finished)")


def test_a_script_that_ends_well_went_on_without_a_process_that_raised(run_path: Path) -> None:
    with RunBuilder(run_path, workers=2) as builder:
        builder.step(STEPS[0])
        builder.leave(ranks=[0])
        builder.leave("failed")
    launched(run_path, 0, pid=os.getpid() + 1)
    ending = ending_of(open_run(run_path))
    assert (ending.over, ending.failure) == (True, None)
    assert [(failure.kind, failure.worker) for failure in ending.early] == [("exception", "worker_1")]
    assert state_of(open_run(run_path)) == "finished"


def test_a_script_that_fails_has_failed_with_the_process_that_raised(run_path: Path) -> None:
    build_run(run_path, STEPS, status="failed")
    launched(run_path, 1, pid=os.getpid() + 1)
    ending = ending_of(open_run(run_path))
    assert ending.failure is not None
    assert ending.early == ()


def test_one_launcher_of_several_answers_for_its_own_rank_only(run_path: Path) -> None:
    build_run(run_path, STEPS, status=None, workers=2)
    launched(run_path, 0, rank=0, ranks=2)
    ending = ending_of(open_run(run_path))
    assert ending.failure == Failure("lost", worker="worker_1")
    assert ending.early == (Failure("lost", worker="worker_0"),)


def test_what_is_seen_from_here_counts_whatever_an_evaluator_saw(run_path: Path) -> None:
    lost = Observation("worker_lost", 0, None, {"worker": "worker_0"})
    build_run(run_path, STEPS, status=None, journal=[lost, Observation("worker_returned", 0, None, lost.data)])
    assert ending_of(open_run(run_path)).failure is not None


def test_the_earliest_failure_of_several_ranks_is_the_reason(run_path: Path) -> None:
    build_run(run_path, STEPS, workers=2)
    launched(run_path, 1, rank=0, ranks=2, failure=Failure("exception", "RuntimeError", "peer is gone", wall_ns=20))
    launched(run_path, 1, rank=1, ranks=2, failure=BAD)
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert found.message == "bad batch"


def test_a_rank_that_was_terminated_is_not_the_reason(run_path: Path) -> None:
    build_run(run_path, STEPS, workers=2)
    launched(run_path, 143, rank=0, ranks=2)
    launched(run_path, 137, rank=1, ranks=2)
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert found.exit_status == 137


def test_a_run_that_goes_on_is_not_over(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        builder.step(STEPS[0])
        assert ending_of(open_run(run_path)) == Ending(over=False, failure=None)


def test_a_newer_attempt_that_goes_on_has_not_failed(run_path: Path) -> None:
    build_run(run_path, STEPS, status="failed")
    with RunBuilder(run_path) as builder:
        builder.step(STEPS[0])
        assert ending_of(open_run(run_path)).failure is None
        assert ending_of(open_run(run_path, attempt=0)).failure is not None


def test_a_launch_that_fails_after_its_processes_began_attempts_of_their_own(run_path: Path) -> None:
    """mp.spawn without a process group: each process trains by itself."""
    build_run(run_path, STEPS, status="failed")
    build_run(run_path, STEPS)
    assert ending_of(open_run(run_path)).failure is None
    launched(run_path, 1, failure=BAD)
    found = ending_of(open_run(run_path)).failure
    assert found is not None
    assert found.message == "bad batch"


def test_a_launch_that_failed_before_a_later_attempt_began_is_past(run_path: Path) -> None:
    build_run(run_path, STEPS, status="failed")
    launched(run_path, 1, failure=BAD)
    build_run(run_path, STEPS)
    assert ending_of(open_run(run_path)) == Ending(over=True, failure=None)
