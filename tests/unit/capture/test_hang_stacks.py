"""Stacks are noted after a silence and again as it doubles, and name the thread that trains."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from watchglass import open_run
from watchglass.capture import Hook
from watchglass.capture.process.hang_stacks import HangStacks
from watchglass.records import DeclaredFact, Fact


class Silent:
    """A hook whose clock of steps stands, and a clock of seconds that a test sets."""

    def __init__(self) -> None:
        self.clock = SimpleNamespace(last_step=-1)
        self.on_look: list[Any] = []
        self.facts: list[Fact] = []
        self.guard = SimpleNamespace(thread=threading.get_ident())
        self.now_s = 100.0

    def add_fact(self, fact: DeclaredFact, source: str) -> None:
        self.facts.append(fact.to_fact(source))

    def at(self, now_s: float, step: int | None = None) -> int:
        """The facts after a look at this time, at which this step is the last one."""
        self.now_s = now_s
        self.clock.last_step = self.clock.last_step if step is None else step
        for look in self.on_look:
            look()
        return len(self.facts)


@pytest.fixture
def silent() -> Silent:
    made = Silent()
    HangStacks(made, after_s=10.0, now_s=lambda: made.now_s)  # type: ignore[arg-type]
    return made


def test_nothing_is_noted_before_the_first_step_or_while_steps_begin(silent: Silent) -> None:
    assert silent.at(1000.0) == 0
    assert [silent.at(1000.0 + n, n) for n in range(100)] == [0] * 100


def test_they_are_noted_after_a_silence_and_again_when_it_has_doubled(silent: Silent) -> None:
    silent.at(200.0, 7)
    assert [silent.at(200.0 + after) for after in (9.9, 10.0, 19.9, 20.0, 39.9, 40.0)] == [0, 1, 1, 2, 2, 3]
    assert silent.facts[0].data["step"] == 7
    assert silent.facts[0].data["seconds"] == 10.0
    silent.at(250.0, 8)  # it goes on
    assert [silent.at(250.0 + after) for after in (40.0, 99.9, 100.0)] == [3, 3, 4]


def test_a_long_pause_before_makes_it_wait(silent: Silent) -> None:
    silent.at(200.0, 1)
    silent.at(260.0, 2)
    before = len(silent.facts)
    assert [silent.at(260.0 + after) - before for after in (119.0, 120.0)] == [0, 1]


def test_a_process_notes_a_bounded_number(silent: Silent) -> None:
    now_s = 200.0
    for step in range(100):
        silent.at(now_s, step)
        now_s += 1000.0 * 3**step
        silent.at(now_s)
    assert len(silent.facts) == 16


def test_the_thread_that_trains_comes_first_with_its_line(silent: Silent) -> None:
    """The looking thread and those of watchglass are left out."""
    silent.at(200.0, 1)
    begun, end = threading.Event(), threading.Event()

    def helper() -> None:
        begun.set()
        end.wait()

    threads = [threading.Thread(target=helper, name=name) for name in ("helper", "watchglass-recorder")]
    for thread in threads:
        thread.start()
        begun.wait()
        begun.clear()
    looking = threading.Thread(target=silent.at, args=(210.0,), name="looking")
    line = sys._getframe().f_lineno
    looking.start()
    looking.join()
    end.set()
    for thread in threads:
        thread.join()
    mine = ("MainThread", "helper", "watchglass-recorder", "looking")  # a runner of tests has further threads
    found = [each for each in silent.facts[0].data["threads"] if each["name"] in mine]
    assert [(each["name"], each["trains"]) for each in found] == [("MainThread", True), ("helper", False)]
    here = [frame for frame in found[0]["frames"] if frame[0] == __file__]
    assert here[0][1] in (line + 1, line + 2), "where it starts that thread, or waits for it"
    assert here[0][2] == "test_the_thread_that_trains_comes_first_with_its_line"
    assert [name for file, _, name in found[1]["frames"] if file == __file__] == ["helper"]


def test_a_hook_with_phases_notes_them(tmp_path: Path) -> None:
    for profiler in (True, False):
        with Hook(tmp_path / str(profiler), profiler=profiler, strict=True) as hook:
            assert len(hook.port.on_look) == profiler
            with hook.step():
                pass
        assert list(open_run(tmp_path / str(profiler)).facts("stacks")) == []
