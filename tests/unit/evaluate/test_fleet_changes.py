"""Runs of a fleet that are removed, replaced, refuse or are held: each its own affair, and no other is lost by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clocks import Now
from evaluators.fleets import HEALTHY, IMPATIENT, SICK, Heard, following, turn_until
from watchglass.config import TIMING
from watchglass.errors import StoreError
from watchglass.evaluate import Snapshots
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.many.fleet import Fleet
from watchglass.evaluate.many.member import State
from watchglass.run.search import MOST_FOLDERS
from watchglass.store import JournalWriter, LocalStore, layout, lease_holder, this_process
from watchglass.testing import RunBuilder, build_run


class Faults:
    """What the stores of a fleet were asked for, and when they refuse."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses: Callable[[LocalStore, str], bool] = lambda store, path: False


class Refusing(LocalStore):
    """A folder that counts requests and refuses some on demand."""

    def __init__(self, root: Any, faults: Faults) -> None:
        super().__init__(root)
        self.faults = faults

    def below(self, path: str) -> Refusing:
        return Refusing(self.root / path, self.faults)

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self.faults.asked.append(path)
        if self.faults.refuses(self, path):
            raise StoreError("permission denied")
        return super().read(path, start, end)


def turns(fleet: Fleet, count: int = 30) -> None:
    for _ in range(count):
        fleet.turn()


# ---------------------------------------------------------------- removed and replaced


def test_a_run_that_is_removed_is_left_and_nothing_is_written_in_its_place(tmp_path: Path, heard: Heard) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.step(HEALTHY[0])
    now = Now()
    with following(tmp_path, heard, clock=now) as fleet:
        turn_until(fleet, lambda: fleet.members and fleet.members[0].caught_up)
        shutil.rmtree(tmp_path / "run")
        now.advance(TIMING.lease_renewal_s)  # its lease would be renewed now
        turn_until(fleet, lambda: heard.left_out)
        assert heard.left_out == {"run": "it was removed while it was followed"}
        assert fleet.members == []
        assert not (tmp_path / "run").exists()
        build_run(tmp_path / "run", SICK)  # which it would not let itself be, were anything there
        now.advance(60.0)
        turn_until(fleet, lambda: heard.ends)
    assert heard.followed == ["run", "run"]
    assert len(heard.ends["run"].evaluation.findings) == 1


def test_what_was_written_while_a_run_was_removed_is_removed_with_it(tmp_path: Path, heard: Heard) -> None:
    RunBuilder(tmp_path / "run").step(HEALTHY[0])
    with following(tmp_path, heard) as fleet:
        turn_until(fleet, lambda: fleet.members and fleet.members[0].caught_up)
        shutil.rmtree(tmp_path / "run")
        LocalStore(tmp_path / "run").write(layout.LEASE_RENEWED, b"{}")
        turn_until(fleet, lambda: heard.left_out)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("judged", [True, False])
def test_a_run_that_had_ended_may_be_replaced_by_another(tmp_path: Path, heard: Heard, judged: bool) -> None:
    build_run(tmp_path / "run", HEALTHY)
    with following(tmp_path, heard) as fleet:
        turn_until(fleet, lambda: heard.ends)
        shutil.rmtree(tmp_path / "run")
        if judged:
            turns(fleet)  # it is seen to be gone
        build_run(tmp_path / "run", SICK)
        found, heard.ends = heard.ends, {}
        turn_until(fleet, lambda: heard.ends)
        assert len(heard.ends["run"].evaluation.findings) == 1
        assert len(found["run"].evaluation.findings) == 0
        assert heard.left_out == {}
        assert fleet.judged_before == 0


def test_a_run_that_is_replaced_while_it_is_followed_is_followed_from_its_start(tmp_path: Path, heard: Heard) -> None:
    now, snapshots = Now(), Snapshots()
    builder = RunBuilder(tmp_path / "run")
    builder.step(scalars={"loss": 1.0})
    with following(tmp_path, heard, clock=now, snapshots=snapshots) as fleet:
        for _ in range(10):
            now.s += 0.2
            fleet.turn()
        shutil.rmtree(tmp_path / "run")
        with RunBuilder(tmp_path / "run") as other:
            other.step(scalars={"loss": 1.0})
            for step in SICK:
                other.step(step)
            for _ in range(20):
                now.s += 1
                fleet.turn()
            assert heard.followed == ["run", "run"]
            assert "[run] was replaced by another run, which is followed from its start" in heard.sentences
            assert snapshots.newest[0].train_steps == {"worker_0": 1 + len(SICK)}


def test_a_run_that_is_removed_before_its_turn_does_no_harm(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)
    with following(tmp_path, heard) as fleet:
        fleet.turn()
        shutil.rmtree(tmp_path / "run")
        turns(fleet)
        assert (heard.left_out, heard.followed, fleet.members) == ({}, [], [])
        build_run(tmp_path / "run", HEALTHY)
        turn_until(fleet, lambda: heard.ends)
        assert heard.followed == ["run"]


# ---------------------------------------------------------------- refused


def test_a_run_that_refuses_while_it_sleeps_keeps_no_other_from_being_found(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "a", HEALTHY)
    faults = Faults()
    with following(tmp_path, heard, store=Refusing(tmp_path, faults)) as fleet:
        turn_until(fleet, lambda: heard.ends)
        faults.refuses = lambda store, path: store.root.name == "a"
        build_run(tmp_path / "b", SICK)
        turn_until(fleet, lambda: "b" in heard.ends)
        faults.refuses = lambda store, path: False
        with RunBuilder(tmp_path / "a") as builder:
            builder.step(HEALTHY[0])
            heard.ends.clear()
            turn_until(fleet, lambda: len(heard.followed) == 3)
        assert heard.followed == ["a", "b", "a"]


def test_a_store_that_refuses_once_a_run_was_judged_loses_no_verdict(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", SICK)
    timing = replace(IMPATIENT, again_s=0.0)
    refused: list[str] = []
    faults = Faults()

    def refuses(store: LocalStore, path: str) -> bool:
        once = path == layout.JUDGED and store.size(path) is not None and not refused
        refused.extend([path] if once else [])
        return once

    faults.refuses = refuses
    with following(tmp_path, heard, store=Refusing(tmp_path, faults), timing=timing) as fleet:
        turn_until(fleet, lambda: refused and not fleet.members)
        assert len(heard.ends["run"].evaluation.findings) == 1
        assert fleet.judged_before == 0


def test_time_for_which_the_store_was_unreachable_is_no_time_that_a_step_was_waited_for(
    tmp_path: Path, heard: Heard
) -> None:
    now = Now()
    begin_s = now.s
    RunBuilder(tmp_path / "run", workers=0)

    class Unreachable(Evaluator):
        unreachable_s = 0.0  # type: ignore[assignment]

        def turn(self, *_: Any) -> bool:
            passed_s = now.s - begin_s
            self.unreachable_s = passed_s - 10 if 10 < passed_s < 150 else 0.0
            return False

    with following(tmp_path, heard, clock=now, wait_s=60.0, evaluator=Unreachable) as fleet:
        while now.s < begin_s + 190:
            now.s += 1
            fleet.turn()
        assert heard.left_out == {}
        for _ in range(20):
            now.s += 1
            fleet.turn()
    assert "no training step came within 60 s" in heard.left_out["run"]


def test_a_broken_pipe_is_no_fault_of_a_run(tmp_path: Path) -> None:
    class Gone(Heard):
        def begun(self, name: str, location: str) -> None:
            raise BrokenPipeError

    heard = Gone()
    build_run(tmp_path / "run", HEALTHY)
    with following(tmp_path, heard) as fleet, pytest.raises(BrokenPipeError):
        turns(fleet)
    assert heard.left_out == {}


def test_too_many_folders_are_reported_once_and_runs_are_found_again_when_there_are_less(
    tmp_path: Path, heard: Heard
) -> None:
    class Wide(LocalStore):
        more: tuple[str, ...] = ()

        def folders(self, prefix: str = "") -> list[str]:
            return [*super().folders(prefix), *(() if prefix else self.more)]

    build_run(tmp_path / "run", HEALTHY)
    store, now = Wide(tmp_path), Now()
    with following(tmp_path, heard, store=store, clock=now) as fleet:
        turn_until(fleet, lambda: heard.ends, now)
        store.more = tuple(f"folder{number}" for number in range(MOST_FOLDERS))
        turn_until(fleet, lambda: heard.sentences, now)
        (sentence,) = heard.sentences
        assert sentence.startswith("new runs cannot be found any more: ")
        with RunBuilder(tmp_path / "run") as builder:  # one that had ended goes on, and is not new
            builder.step(HEALTHY[0])
            heard.ends.clear()
            turn_until(fleet, lambda: len(heard.followed) == 2, now)
        store.more = ()
        build_run(tmp_path / "2", HEALTHY)
        turn_until(fleet, lambda: "2" in heard.ends, now)
        assert len(heard.sentences) == 1


# ---------------------------------------------------------------- held by others


def test_an_evaluator_of_this_machine_that_lives_is_left_alone_however_silent(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)
    now = Now()
    with JournalWriter(LocalStore(tmp_path / "run")), following(tmp_path, heard, clock=now) as fleet:
        for _ in range(100):
            now.s += 1
            fleet.turn()
        assert heard.followed == []
        assert lease_holder(LocalStore(tmp_path / "run")) is not None


def test_a_run_whose_follower_shows_that_it_lives_costs_one_request(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)
    store, now = LocalStore(tmp_path / "run"), Now()
    store.write(layout.LEASE, json.dumps({**this_process().to_json(), "host": "another-machine"}).encode())
    faults = Faults()
    with following(tmp_path, heard, store=Refusing(tmp_path, faults), clock=now) as fleet:
        turn_until(fleet, lambda: heard.sentences)
        (member,) = fleet.members
        for second in range(5):
            store.write(layout.LEASE_RENEWED, str(second).encode(), replace=True)
            faults.asked.clear()
            assert member.turn() > 0
            assert faults.asked == [layout.LEASE_RENEWED]
        assert member.state is State.HELD


# ---------------------------------------------------------------- ends


def test_waiting_for_the_last_deliveries_of_a_run_ends_when_following_does(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)
    waited: list[bool] = []

    class Slow(Evaluator):
        def finish(self, *, pause: Any = None, **more: Any) -> None:
            waited.extend([pause(0.01), pause(0.01)])
            super().finish(pause=pause, **more)

    goes_on = [True]

    def pause(seconds: float) -> bool:
        going, goes_on[0] = goes_on[0], False
        return going

    with following(tmp_path, heard, pause=pause, evaluator=Slow) as fleet:
        turn_until(fleet, lambda: heard.ends)
    assert waited == [False, False]


def test_runs_that_wait_for_their_last_deliveries_keep_their_leases_while_others_end(
    tmp_path: Path, heard: Heard
) -> None:
    build_run(tmp_path / "a", HEALTHY)
    renewed, now = LocalStore(tmp_path / "a"), Now()
    numbers: list[int] = []

    class Slow(Evaluator):
        def finish(self, *, pause: Any = None, **more: Any) -> None:
            if self.snapshot().run.endswith("a"):
                build_run(tmp_path / "b", HEALTHY)
                for _ in range(500):
                    pause(0.02)
                    if "b" in heard.ends:
                        break
            else:
                for _ in range(3):  # in the turn of the other
                    numbers.append(json.loads(renewed.read(layout.LEASE_RENEWED))["number"])
                    pause(1.5 * TIMING.lease_renewal_s)
            super().finish(pause=pause, **more)

    def pause(seconds: float) -> bool:
        now.advance(seconds)
        return True

    with following(tmp_path, heard, clock=now, pause=pause, evaluator=Slow) as fleet:
        turn_until(fleet, lambda: len(heard.ends) == 2)
    assert numbers[0] < numbers[1] < numbers[2]


def test_a_fault_while_a_run_is_opened_gives_its_lease_back(tmp_path: Path, heard: Heard) -> None:
    build_run(tmp_path / "run", HEALTHY)

    class AtFault(Evaluator):
        def open(self, *args: Any, **more: Any) -> None:
            super().open(*args, **more)
            assert lease_holder(LocalStore(tmp_path / "run")) is not None
            raise ZeroDivisionError

    with following(tmp_path, heard, evaluator=AtFault) as fleet:
        turn_until(fleet, lambda: heard.left_out)
        assert lease_holder(LocalStore(tmp_path / "run")) is None
