"""Growth is seen where there is some, and only there."""

from __future__ import annotations

import gc
import mmap
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from growth import RESIDENT_LIMIT, TRACED_LIMIT, Growth, growth, resident_bytes, sampled, traced_bytes, verdict


def test_slope_is_bytes_per_step() -> None:
    steps = np.arange(100, 2000, 100)
    found = growth(steps, 1000 + 8 * steps)
    assert found == Growth(slope=8.0, total=8.0 * 1800)


def test_a_single_jump_is_no_slope() -> None:
    steps = np.arange(100)
    assert growth(steps, np.where(steps < 40, 0, 5_000_000)).slope == pytest.approx(0, abs=1)


@pytest.fixture
def tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
def no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is collected, which takes long in a process that holds as much as that of the tests."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def no_pause(seconds: float) -> None:
    """Nothing is waited for."""


@pytest.mark.usefixtures("tracing", "no_garbage")
def test_a_reference_leaked_at_every_step_is_seen() -> None:
    leaked: list[object] = []
    assert sampled(lambda: leaked.append(object()), traced_bytes, 2000, no_pause).slope > 16
    assert sampled(lambda: None, traced_bytes, 2000, no_pause).slope == pytest.approx(0, abs=1)


class Queue:
    """Memory that grows with every step, and is given back, but for a leak, while nothing is done."""

    def __init__(self, leak: int) -> None:
        self.leak, self.waiting, self.leaked = leak, 0, 0

    def step(self) -> None:
        self.waiting += 10_000
        self.leaked += self.leak

    def pause(self, seconds: float) -> None:
        self.waiting = self.waiting * 2 // 3

    def size(self) -> int:
        return self.waiting + self.leaked


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("leak", [0, 1])
def test_what_waits_to_be_written_is_no_growth_but_what_is_never_given_back_is(leak: int) -> None:
    queue = Queue(leak)
    assert sampled(queue.step, queue.size, 2000, queue.pause).slope == pytest.approx(leak)


def test_resident_memory_is_that_of_this_process() -> None:
    before = resident_bytes()
    # Fresh pages from the system: memory that NumPy gets may be what somebody gave back before.
    with mmap.mmap(-1, 8 << 20) as held:
        held.write(b"x" * len(held))
        assert resident_bytes() - before > len(held) / 2


@pytest.mark.parametrize(
    ("bare", "resident", "traced", "grows"),
    [
        (0, 0, 0, False),
        (0, RESIDENT_LIMIT + 1, 0, True),
        (0, 0, TRACED_LIMIT + 1, True),
        (RESIDENT_LIMIT, RESIDENT_LIMIT + 1, 0, False),  # the training itself grows
        (-RESIDENT_LIMIT, 1, 0, False),
        (-RESIDENT_LIMIT, RESIDENT_LIMIT + 1, 0, True),  # one that shrinks excuses nothing
    ],
)
def test_verdict(bare: float, resident: float, traced: float, grows: bool) -> None:
    found = {"bare": Growth(0, bare), "resident": Growth(0, resident), "traced": Growth(0, traced)}
    assert verdict(found)["grows"] is grows
