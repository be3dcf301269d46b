"""Which processes write a run, known from its files with few requests."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from watchglass.config import TIMING, Timing
from watchglass.records import Sighting
from watchglass.store import (
    Attendance,
    LeaseWatch,
    LocalStore,
    Renewal,
    claim_worker,
    create_attempt,
    create_run,
    layout,
    read_claims,
    read_launch_ends,
    release_worker,
    this_process,
    write_launch_end,
)


class Counting(LocalStore):
    """A folder that counts what is asked of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()

    def read(self, path, start=0, end=None):
        self.asked[f"read {path}"] += 1
        return super().read(path, start, end)

    def list(self, prefix="", after=""):
        self.asked["list"] += 1
        return super().list(prefix, after)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    store = Counting(tmp_path)
    create_run(store, command=[])
    create_attempt(store, "")
    return store


def test_the_newest_claim_counts_as_everywhere(store: Counting) -> None:
    attendance = Attendance(store)
    attendance.look(0)
    assert attendance.claims(0) == {}
    for rank in (10, 9, 0):
        claim_worker(store, 0, f"worker_{rank}")
    for _ in range(6):  # generations beyond 9 sort behind .10 as text
        release_worker(store, 0, "worker_9")
        claim_worker(store, 0, "worker_9")
    attendance.look(0)
    assert list(attendance.claims(0)) == ["worker_0", "worker_9", "worker_10"]
    assert attendance.claims(0) == read_claims(store, 0)


def test_a_look_is_one_listing_and_every_claim_is_read_once(store: Counting) -> None:
    attendance = Attendance(store)
    claim_worker(store, 0, "worker_0")
    store.asked.clear()
    for _ in range(5):
        attendance.look(0)
    claim_worker(store, 0, "worker_1")
    store.asked.pop(f"read {layout.worker_claim(0, 'worker_1')}", None)
    attendance.look(0)
    assert store.asked["list"] == 6
    assert {number for asked, number in store.asked.items() if asked != "list"} == {1}


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"pid": []}', b"\xff"])
def test_an_unreadable_claim_is_left_out(store: Counting, content: bytes) -> None:
    store.write(layout.worker_claim(0, "worker_0"), content)
    store.write(layout.launch_end(0, 0), content)
    claim_worker(store, 0, "worker_1")
    attendance = Attendance(store)
    attendance.look(0)
    assert list(attendance.claims(0)) == ["worker_1"]
    assert attendance.launch_ended(0, "worker_0") is None


def test_the_end_of_one_launcher_is_that_of_its_workers(store: Counting) -> None:
    attendance = Attendance(store)
    write_launch_end(store, 0, rank=1, world_size=2, exit_status=3)
    attendance.look(0)
    assert attendance.launch_ended(0) is None
    assert attendance.launch_ended(0, "worker_0") is None
    assert attendance.launch_ended(0, "worker_1").exit_status == 3
    create_attempt(store, "")
    write_launch_end(store, 1, rank=0, world_size=1, exit_status=0)
    attendance.look(1)
    assert attendance.launch_ended(1, "worker_7") == attendance.launch_ended(1)


def test_an_end_keeps_what_was_seen_of_frameworks(store: Counting) -> None:
    seen = Sighting(("torch",), 50)
    write_launch_end(store, 0, rank=0, world_size=1, exit_status=0, sighting=seen)
    assert read_launch_ends(store, 0)[0].sighting == seen


class Clocks:
    """A monotonic clock that a test moves, and a wall clock that stands still."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def time_ns(self) -> int:
        return 5


def test_a_lease_is_renewed_in_time_and_its_silence_is_measured_by_ones_own_clock(store: Counting) -> None:
    holder, watcher = Clocks(), Clocks()
    store.write(layout.LEASE, json.dumps({**this_process().to_json(), "host": "elsewhere"}).encode())
    watch = LeaseWatch(store, watcher)
    renewal = Renewal(store, timing=Timing(lease_renewal_s=10.0), clock=holder)
    assert renewal.tick()
    assert watch.holds()
    assert watch.elsewhere
    holder.now_s, watcher.now_s = 9.0, TIMING.lease_expiry_s - 1
    assert not renewal.tick()
    assert not watch.renewed()
    assert watch.holds()
    holder.now_s = 10.0
    assert renewal.tick()
    assert watch.renewed()
    watcher.now_s += TIMING.lease_expiry_s - 1
    assert not watch.renewed()
    assert watch.holds()
    watcher.now_s += 1
    assert not watch.holds()
    assert watch.gone == watch.holder


def test_what_is_written_of_launches_is_no_claim(store: Counting) -> None:
    assert layout.parse_claim(layout.launch_end(3, 5)) is None
    assert layout.parse_launch_end(layout.launch_end(3, 5)) == (3, 5)
    claim_worker(store, 0, "worker_0", replace(this_process(), pid=4))
    write_launch_end(store, 0, rank=0, world_size=1, exit_status=0)
    assert list(read_claims(store, 0)) == ["worker_0"]
