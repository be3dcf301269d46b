"""What a launcher does with its evaluator, and with signals meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from waiting import PATIENCE_S
from watchglass.config import EvaluatorConfig
from watchglass.launch.evaluator import companion_environment, wait_for
from watchglass.launch.signals import SignalWatch
from watchglass.supervise import Supervision

CONFIG = EvaluatorConfig(run="run", attempt=0, rules=())

Start = Callable[[int | None], Supervision]


class Process:
    """An evaluator that ends a moment after its lifeline was closed, or never."""

    pid = 1

    def __init__(self, code: int | None) -> None:
        self._code, self._looks_left = code, -1

    def poll(self) -> int | None:
        self._looks_left -= 1
        return self._code if self._looks_left == 0 else None

    def shows_life(self) -> bool:
        return True

    def let_go(self) -> None:
        self._looks_left = 3

    def end(self) -> None:
        self._code = -signal.SIGTERM


@pytest.fixture
def start() -> Start:
    """Starts evaluators that end with a code; with None they never end."""

    def begin(code: int | None) -> Supervision:
        process: Any = Process
        return Supervision(CONFIG, {}, lambda sentence: None, start=lambda *_: process(code))

    return begin


def test_its_environment_is_without_capture() -> None:
    environ = {"WATCHGLASS_SESSION": "{}", "PYTHONPATH": f"/b{os.pathsep}lib", "HOME": "/h"}
    cleaned = companion_environment(environ, "/b")
    assert cleaned["WATCHGLASS"] == "0"
    assert cleaned["PYTHONPATH"] == "lib"
    assert cleaned["HOME"] == "/h"
    assert "WATCHGLASS_SESSION" not in cleaned
    assert "PYTHONPATH" not in companion_environment({"PYTHONPATH": "/b"}, "/b")


def test_its_end_is_waited_for(start: Start) -> None:
    evaluator = start(0)
    ticks: list[float] = []
    with SignalWatch() as signals:
        assert wait_for(evaluator, signals, patience_s=PATIENCE_S, tick=ticks.append)
    assert evaluator.completed
    assert ticks
    assert ticks == sorted(ticks)


def test_it_is_ended_when_patience_ends(start: Start) -> None:
    evaluator = start(None)
    with SignalWatch() as signals:
        assert not wait_for(evaluator, signals, patience_s=0.2)
    assert evaluator.over
    assert not evaluator.completed


def test_ctrl_c_ends_the_wait(start: Start) -> None:
    evaluator = start(None)
    with SignalWatch() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert not wait_for(evaluator, signals, patience_s=PATIENCE_S)


def test_one_that_fails_to_the_last_is_no_reason_to_wait(start: Start) -> None:
    evaluator = start(3)
    with SignalWatch() as signals:
        assert wait_for(evaluator, signals, patience_s=PATIENCE_S)
    assert not evaluator.completed


def test_signals_act_as_before_afterwards() -> None:
    with SignalWatch():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_where_signals_cannot_be_asked_handlers_do() -> None:
    watch = SignalWatch(exact=False)
    before = signal.getsignal(signal.SIGTERM)
    with watch:
        assert watch.wait(0.01) is None
        os.kill(os.getpid(), signal.SIGTERM)
        arrival = watch.wait(60.0)
    assert arrival is not None
    assert (arrival.number, arrival.shared) == (signal.SIGTERM, False)
    assert signal.getsignal(signal.SIGTERM) is before
