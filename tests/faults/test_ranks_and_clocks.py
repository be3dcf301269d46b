"""Two writers of one rank, and clocks that jump, on a folder and on a server alike."""

from __future__ import annotations

import pytest

from stores.faulty_stores import Faulty, Recorded, arrived, child, faulty, kind_of_store, spools, train
from waiting import until
from watchglass import Hook
from watchglass.config import SessionConfig
from watchglass.store import (
    Frame,
    FrameKind,
    RunReader,
    SegmentWriter,
    create_attempt,
    create_run,
    encode_frame,
    read_claims,
)

__all__ = ["faulty", "kind_of_store", "spools"]


class Clock:
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = 1_700_000_000.0, 500.0

    def time_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def monotonic_ns(self) -> int:
        return int(self.monotonic_s * 1e9)

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds


def fact(number: int) -> bytes:
    return encode_frame(FrameKind.FACTS, b"%d" % number)


def numbers(found: list[tuple[int, str, Frame]], worker: str) -> list[int]:
    return [int(frame.payload) for _, name, frame in found if name == worker and frame.kind == FrameKind.FACTS]


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0, -1_700_000_000.0, 40 * 365 * 86_400.0])
def test_a_clock_that_jumps_and_comes_back_hides_nothing(faulty: Faulty, jump_s: float) -> None:
    """Neither what its worker writes nor what the others do, whose clocks are right."""
    store = faulty.store()
    create_run(store, command=[])
    create_attempt(store, "")
    jumping, steady = Clock(), Clock()
    writers = [SegmentWriter(store, 0, f"worker_{rank}", clock=clock) for rank, clock in enumerate((jumping, steady))]
    reader, seen = RunReader(store), []
    for number in range(12):
        for clock, writer in zip((jumping, steady), writers, strict=True):
            writer.write([fact(number)])
            clock.passes(61)
        if number == 4:
            jumping.wall_s += jump_s
        if number == 8:
            jumping.wall_s -= jump_s
        seen += reader.poll()
    seen += reader.poll(full=True)
    for worker in ("worker_0", "worker_1"):
        assert numbers(seen, worker) == list(range(12))
        assert numbers(RunReader(store).poll(), worker) == list(range(12))
    assert reader.problems == []


CLAIM = """
import sys
from watchglass.errors import RunExistsError
from watchglass.store import claim_worker, open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    claim_worker(store, 0, "worker_3")
    print("taken", flush=True)
except RunExistsError as error:
    print(error, flush=True)
sys.stdin.readline()
"""


def test_of_processes_that_take_one_rank_at_once_one_gets_it_and_the_others_get_the_reason(faulty: Faulty) -> None:
    store = faulty.store()
    create_run(store, command=[])
    create_attempt(store, "")
    processes = [child(CLAIM, faulty.location) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.stdout.readline().strip() for process in processes)
    for process in processes:
        process.communicate("\n")
    assert said.count("taken") == 1
    refused = [line for line in said if line != "taken"]
    assert all("worker_3 of" in line and "process" in line and "choose another run" in line for line in refused), (
        refused
    )
    assert len(read_claims(store, 0)) == 1


def test_a_second_training_of_one_rank_is_an_attempt_of_its_own(faulty: Faulty) -> None:
    store = faulty.store()
    create_run(store, command=[])
    create_attempt(store, "")
    given = SessionConfig(faulty.location, attempt=0, save_interval=1, flush_interval_s=0.02)
    with Hook(config=given) as first:
        one = train(first, range(5))
        until(lambda: arrived(faulty))
        with Hook(config=given) as second:
            other = train(second, range(7))
    assert Recorded(store, 0).losses == one
    assert Recorded(store, 1).losses == other
