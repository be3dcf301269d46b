"""The journal of an evaluator: one writer at a time; nothing twice, nothing lost while the store is unreachable."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clocks import Now
from watchglass.config import TIMING
from watchglass.errors import RunExistsError, StoreError
from watchglass.evaluate.live.journal import BufferedJournal
from watchglass.records import Finding, Mode, Observation, RuleStatus, Severity, Status
from watchglass.run import open_run
from watchglass.store import JournalWriter, LocalStore, RunReader, layout, lease_holder
from watchglass.testing import build_run

FINDING = Finding(
    id="abcdefabcdef", rule="ExplodingTensor", severity=Severity.ERROR, step=7, last_step=7, count=1, mode=Mode.TRAIN,
    worker="worker_0", tensors=("loss",), value=1.0, limit=None, message="the loss became NaN",
)  # fmt: skip
STATUS = RuleStatus("ExplodingTensor", Status.ISSUES_FOUND)
LOST = Observation("worker_lost", 0, (3, 0, 3), {"worker": "worker_1"})


class Objects(LocalStore):
    """A folder that behaves like an object store, unreachable on demand."""

    appends = False
    unreachable = False

    def write(self, path, data, *, replace=False):
        if self.unreachable:
            raise StoreError("the store is unreachable")
        super().write(path, data, replace=replace)


@pytest.fixture
def store(run_path: Path) -> Objects:
    build_run(run_path)
    return Objects(run_path)


def opened(store: LocalStore, said: list[str] | None = None, **more: Any) -> BufferedJournal:
    journal = BufferedJournal(store, said.append if said is not None else lambda _: None, **more)
    journal.open(lambda seconds: False, patience_s=0.0, poll_s=0.1)
    return journal


def frames(store: LocalStore) -> int:
    return len(RunReader(store).journal())


def holder_elsewhere(store: LocalStore) -> None:
    """The lease as a process of another machine would have taken it."""
    with JournalWriter(store):
        (path,) = [entry.path for entry in store.list(layout.JOURNAL) if entry.path == layout.LEASE]
        claim = json.loads(store.read(path))
        store.write(path, json.dumps({**claim, "host": "elsewhere"}).encode(), replace=True)
    store.delete(f"{layout.LEASE}.1")  # what the end of our own writer added


def test_an_object_store_gets_one_object_for_all_that_waits(store: Objects) -> None:
    journal = opened(store)
    journal.write([FINDING, STATUS])
    journal.write([LOST])
    assert frames(store) == 0
    assert journal.flush()
    assert frames(store) == 3
    assert [
        entry.path
        for entry in store.list(layout.JOURNAL)
        if layout.parse_numbered(layout.JOURNAL, entry.path) is not None
    ] == [layout.numbered(layout.JOURNAL, 0)]
    journal.close()


def test_a_folder_gets_everything_at_once(run_path: Path) -> None:
    build_run(run_path)
    journal = opened(LocalStore(run_path))
    journal.write([LOST])
    assert frames(LocalStore(run_path)) == 1
    journal.write([FINDING])
    assert frames(LocalStore(run_path)) == 2
    written = [layout.parse_numbered(layout.JOURNAL, each.path) for each in LocalStore(run_path).list(layout.JOURNAL)]
    assert [number for number in written if number is not None] == [0], "a journal of any age is one file"
    journal.close()


def test_what_could_not_be_written_is_written_later_in_its_newest_state(store: Objects) -> None:
    said: list[str] = []
    journal = opened(store, said)
    store.unreachable = True
    journal.write([FINDING, LOST])
    assert not journal.flush()
    assert not journal.flush()
    journal.write([replace(FINDING, count=9, last_step=15), STATUS])
    store.unreachable = False
    assert journal.flush()
    assert frames(store) == 3
    run = open_run(store.location)
    assert (run.journal.findings[0].count, run.journal.observations, len(run.journal.statuses)) == (9, [LOST], 1)
    assert len(said) == 2
    assert "the store is unreachable; findings are buffered" in said[0]
    assert said[1] == "findings are being written again"
    journal.close()


def test_a_write_whose_answer_was_lost_is_repeated_in_the_next_object(store: Objects) -> None:
    """A repeated request finds the object of the first one there; the lease shows that no other evaluator wrote it."""
    journal = opened(store)
    journal.write([FINDING])
    assert journal.flush()
    store.write(layout.numbered(layout.JOURNAL, 1), b"")  # as the first request has left it
    journal.write([LOST])
    assert not journal.flush()
    assert journal.flush()
    assert frames(store) == 2
    journal.close()


def test_what_waits_is_bounded_and_reported(store: Objects) -> None:
    said: list[str] = []
    journal = opened(store, said, most_waiting=2)
    store.unreachable = True
    journal.write([FINDING, LOST, STATUS])
    journal.flush()
    journal.write([replace(FINDING, count=2)])
    store.unreachable = False
    journal.flush()
    assert said[-1] == "findings are being written again, 1 were too many and are omitted"
    assert open_run(store.location).journal.findings[0].count == 2
    journal.close()


def test_an_evaluator_that_starts_again_repeats_nothing(store: Objects) -> None:
    first = opened(store)
    first.write([replace(FINDING, count=3), LOST, STATUS])
    first.flush()
    first.close()
    second = opened(store)
    for count in (1, 2, 3):
        second.write([replace(FINDING, count=count), LOST, STATUS])
        second.flush()
    assert frames(store) == 3
    second.write([replace(FINDING, count=4)])
    second.flush()
    assert frames(store) == 4
    second.close()


def test_a_second_evaluator_is_refused_while_the_first_lives(store: Objects) -> None:
    first = opened(store)
    with pytest.raises(RunExistsError, match="is held by process"):
        opened(store)
    first.close()
    opened(store).close()


class Clock(Now):
    """A clock that moves when somebody waits; others may act meanwhile."""

    def __init__(self, store: LocalStore, *, renewing: bool) -> None:
        super().__init__()
        self.store, self.renewing = store, renewing

    def pause(self, seconds: float) -> bool:
        self.advance(seconds)
        if self.renewing:
            self.store.write(layout.LEASE_RENEWED, json.dumps({"number": self.s}).encode(), replace=True)
        return True


def test_one_on_another_machine_that_renews_its_lease_is_left_in_peace(store: Objects) -> None:
    holder_elsewhere(store)
    clock = Clock(store, renewing=True)
    with pytest.raises(RunExistsError, match="on elsewhere"):
        BufferedJournal(store, print, clock).open(clock.pause, patience_s=0.0, poll_s=1.0)
    assert clock.s < 1000 + TIMING.lease_expiry_s


def test_one_on_another_machine_that_is_silent_is_followed_by_us(store: Objects) -> None:
    holder_elsewhere(store)
    clock = Clock(store, renewing=False)
    journal = BufferedJournal(store, print, clock)
    journal.open(clock.pause, patience_s=0.0, poll_s=1.0)
    assert TIMING.lease_expiry_s <= clock.s - 1000 <= TIMING.lease_expiry_s + 2
    assert lease_holder(store).host == platform.node()
    journal.close()


def test_who_was_taken_for_gone_notices_and_ends(store: Objects) -> None:
    clock = Now()
    journal = opened(store, clock=clock)
    journal.write([FINDING])
    journal.flush()
    journal.close = lambda: None  # type: ignore[method-assign]
    lease = json.loads(store.read(layout.LEASE))
    store.write(f"{layout.LEASE}.1", json.dumps({**lease, "host": "elsewhere", "pid": 77}).encode())
    store.write(layout.numbered(layout.JOURNAL, 1), b"")  # what the other one has written meanwhile
    journal.write([LOST])
    with pytest.raises(RunExistsError, match="was taken over by process 77 on elsewhere"):
        journal.flush()
    clock.advance(TIMING.lease_renewal_s)
    journal.renew()  # it holds nothing any more, so there is nothing to renew


def take_over(store: LocalStore, number: int = 1, host: str = "elsewhere") -> None:
    """The lease as another evaluator takes it from one that was silent."""
    lease = json.loads(store.read(layout.LEASE))
    store.write(f"{layout.LEASE}.{number}", json.dumps({**lease, "host": host, "pid": 77}).encode())


def test_who_was_taken_for_gone_does_not_give_back_what_another_one_has(store: Objects) -> None:
    journal = opened(store)
    take_over(store)
    journal.close()
    assert lease_holder(store).host == "elsewhere"


def test_one_that_has_just_come_is_not_taken_for_the_silent_one_before_it(store: Objects) -> None:
    """Two evaluators wait for a third that is gone: one of them gets the lease, and has not renewed it yet."""
    holder_elsewhere(store)
    clock = Clock(store, renewing=False)

    def pause(seconds: float) -> bool:
        waited = clock.s - 1000 + seconds
        if waited >= TIMING.lease_expiry_s and f"{layout.LEASE}.1" not in [
            entry.path for entry in store.list(layout.JOURNAL)
        ]:
            take_over(store, host="a third machine")
        clock.renewing = waited >= TIMING.lease_expiry_s + 5
        return clock.pause(seconds)

    with pytest.raises(RunExistsError, match="on a third machine"):
        BufferedJournal(store, print, clock).open(pause, patience_s=0.0, poll_s=1.0)
    assert lease_holder(store).host == "a third machine"
