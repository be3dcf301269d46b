"""The interval of recorded steps: how it follows from the time that steps take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from watchglass.capture.pytorch.fast_path.step_interval import StepInterval


class Clocks:
    """Time and processor time of the thread, which steps move on."""

    def __init__(self) -> None:
        self.now_ns = self.thread_ns = 0

    def steps(self, count: int, each_ns: int, *, waited_ns: int = 0) -> None:
        self.now_ns += count * (each_ns + waited_ns)
        self.thread_ns += count * each_ns


def interval_of(clocks: Clocks, *, whole_steps: int = 4096, longest: int = 64) -> StepInterval:
    plan: Any = SimpleNamespace(budget=SimpleNamespace(share=0.01))
    read = lambda: clocks.now_ns, lambda: clocks.thread_ns
    return StepInterval(plan, whole_steps, longest, read)


@pytest.mark.parametrize("stretch", [1, 10, 64, 255, 256, 4096])
def test_steps_count_in_stretches_of_any_length(stretch: int) -> None:
    """Captures and evaluations divide the steps; what happens between stretches takes none of their time."""
    clocks = Clocks()
    interval = interval_of(clocks)
    step = 0
    while interval.interval == 1 and step < 10_000:
        interval.begin(step)
        clocks.steps(stretch, 750_000)
        step += stretch
        interval.look(step, 30_000)
        clocks.steps(1, 10**9)
        step += 1
    assert 4096 <= step <= 4096 + stretch + 1
    assert interval.interval == 4


def test_a_stretch_that_something_else_ends_counts_too() -> None:
    clocks = Clocks()
    interval = interval_of(clocks, whole_steps=256)
    for begin in range(0, 400, 100):
        interval.begin(begin)
        clocks.steps(100, 750_000)
        interval.end(begin + 100)
    interval.begin(400)
    clocks.steps(1, 750_000)
    assert interval.look(401, 30_000)
    assert interval.interval == 4


def test_a_step_that_waits_by_itself_is_as_long_as_it_waits() -> None:
    clocks = Clocks()
    interval = interval_of(clocks, whole_steps=256)
    interval.begin(0)
    clocks.steps(256, 100_000, waited_ns=20_000_000)
    assert not interval.look(256, 30_000)
    clocks.steps(256, 100_000, waited_ns=1_000_000)
    assert interval.look(512, 30_000)
    assert interval.interval == 32
