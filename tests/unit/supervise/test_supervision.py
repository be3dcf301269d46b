"""An evaluator that dies or hangs is reported at once and replaced, three times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from watchglass.config import EvaluatorConfig
from watchglass.errors import LaunchError
from watchglass.records import Severity
from watchglass.supervise import Supervision

CONFIG = EvaluatorConfig(run="here", attempt=0, rules=())


class Process:
    """A process that dies when a test says so."""

    def __init__(self, config: EvaluatorConfig) -> None:
        self.config, self.code, self.alive, self.let = config, None, True, False
        self.pid = 1

    def poll(self) -> int | None:
        return self.code

    def shows_life(self) -> bool:
        return self.alive

    def let_go(self) -> None:
        self.let = True

    def wait(self, timeout_s: float) -> int | None:
        if self.let and self.code is None:
            self.code = 0
        return self.code

    def end(self) -> None:
        self.code = -15

    kill = end


class World:
    """A clock, processes and what was said."""

    def __init__(self, config: EvaluatorConfig = CONFIG, *, refused: bool = False) -> None:
        self.now_s, self.refused = 100.0, refused
        self.started: list[Process] = []
        self.said: list[str] = []
        self.supervision = Supervision(
            config, {}, self.said.append, start=self.start, monotonic=lambda: self.now_s
        )  # fmt: skip

    def start(self, config: EvaluatorConfig, environ: Mapping[str, str]) -> Any:
        if self.refused:
            raise LaunchError("the evaluator cannot be started: no memory")
        self.started.append(Process(config))
        return self.started[-1]

    def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.supervision.look()


def test_one_that_was_killed_is_replaced_at_once() -> None:
    world = World()
    world.pass_s(10)
    assert (len(world.started), world.said) == (1, [])
    world.started[0].code = -9
    world.supervision.look()
    assert len(world.started) == 2
    assert [process.config.continues for process in world.started] == [False, True]
    assert world.said == [
        "the evaluator was killed by SIGKILL (possibly out of memory); restarting (1 of 3), continuing from the journal"
    ]


def test_the_later_ones_wait_and_the_fourth_is_the_last() -> None:
    world = World(EvaluatorConfig(run="here", attempt=0, rules=(), stop_on=Severity.ERROR))
    for pause_s in (0, 5, 60):
        before = len(world.started)
        world.started[-1].code = 1
        world.supervision.look()
        if pause_s:
            world.pass_s(pause_s - 1)
            assert len(world.started) == before
            world.pass_s(1)
        assert len(world.started) == before + 1
        assert not world.supervision.over
    assert "restarting in 60 s (3 of 3)" in world.said[-1]
    world.started[-1].code = 1
    world.pass_s(1000)
    assert len(world.started) == 4
    assert world.supervision.over
    assert not world.supervision.completed
    assert world.said[3:] == [
        "the evaluator ended with exit status 1, 4 times in all; this run is no longer evaluated and will not "
        "be stopped by findings; to evaluate it later: watchglass check here"
    ]


def test_one_that_said_why_it_cannot_go_on_is_not_replaced() -> None:
    world = World()
    world.started[0].code = 2
    world.supervision.look()
    assert (len(world.started), world.supervision.over) == (1, True)
    assert world.said == ["the evaluator ended for the reason above; to evaluate it later: watchglass check here"]


def test_one_that_was_asked_to_end_is_replaced_while_the_training_goes_on() -> None:
    world = World()
    world.started[0].code = 0
    world.supervision.look()
    assert len(world.started) == 2
    assert "ended before the run did" in world.said[0]


def test_none_that_can_be_started() -> None:
    world = World(refused=True)
    world.pass_s(100)
    assert world.supervision.over
    assert len(world.said) == 4
    assert "the evaluator did not start (the evaluator cannot be started: no memory)" in world.said[0]


def test_one_that_hangs_is_killed_and_replaced() -> None:
    world = World()
    world.started[0].alive = False
    world.pass_s(300)
    assert world.said == []
    world.pass_s(2)
    assert [process.code for process in world.started] == [-15, None]
    assert "did not respond for 301 s and was killed; restarting" in world.said[0]
    world.pass_s(1000)
    assert len(world.said) == 1


def test_slow_rules_have_their_time() -> None:
    world = World(EvaluatorConfig(run="here", attempt=0, rules=(), rule_timeout_s=100.0))
    world.started[0].alive = False
    world.pass_s(999)
    assert world.said == []


def test_a_machine_that_slept_is_no_silence() -> None:
    world = World()
    world.started[0].alive = False
    for _ in range(10):
        world.now_s += 86_400.0
        world.supervision.look()
    assert world.said == []


def test_at_the_end_it_is_let_go_and_waited_for() -> None:
    world = World()
    assert world.supervision.wait(60.0)
    assert world.started[0].let
    assert world.supervision.completed
    assert (len(world.started), world.said) == (1, [])


def test_one_that_dies_while_it_evaluates_the_last_steps_is_replaced_without_a_pause() -> None:
    world = World()
    for _ in range(2):
        world.supervision.training_ended()
        world.started[-1].code = -11
        world.supervision.look()
    assert len(world.started) == 3
    assert "SIGSEGV" in world.said[-1]
    assert world.supervision.wait(60.0)
    assert world.supervision.completed


def test_a_pause_ends_with_the_training() -> None:
    world = World()
    for _ in range(2):
        world.started[-1].code = 1
        world.supervision.look()
    assert len(world.started) == 2
    assert world.supervision.wait(60.0)
    assert len(world.started) == 3
    assert world.supervision.completed


@pytest.mark.parametrize("paused", [False, True])
def test_nothing_takes_the_place_of_one_that_is_ended_on_purpose(paused: bool) -> None:
    world = World()
    for _ in range(2 if paused else 0):
        world.started[-1].code = 1
        world.supervision.look()
    started = len(world.started)
    world.supervision.end()
    world.pass_s(100)
    assert world.supervision.over
    assert len(world.started) == started
