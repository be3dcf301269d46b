"""What a launcher does with its evaluator, and with signals meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping

import pytest

from waiting import PATIENCE_S
from watchglass.config import EvaluatorConfig
from watchglass.launch.evaluator import evaluator_environment, wait_for
from watchglass.launch.signals import SignalWatch
from watchglass.supervise import EvaluatorProcess, Supervision

CONFIG = EvaluatorConfig(run="run", attempt=0, rules=())

Start = Callable[[str], Supervision]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an "evaluator" that runs given code instead."""
    started: list[Supervision] = []

    def begin(code: str) -> Supervision:
        def process(config: EvaluatorConfig, environ: Mapping[str, str]) -> EvaluatorProcess:
            return EvaluatorProcess(config, environ, ("-c", code))

        started.append(Supervision(CONFIG, os.environ, lambda sentence: None, start=process))
        return started[-1]

    yield begin
    for supervision in started:
        supervision.end()
        assert supervision.over


def test_its_environment_is_without_capture() -> None:
    environ = {"WATCHGLASS_SESSION": "{}", "PYTHONPATH": f"/b{os.pathsep}lib", "HOME": "/h"}
    cleaned = evaluator_environment(environ, "/b")
    assert cleaned["WATCHGLASS"] == "0"
    assert cleaned["PYTHONPATH"] == "lib"
    assert cleaned["HOME"] == "/h"
    assert "WATCHGLASS_SESSION" not in cleaned
    assert "PYTHONPATH" not in evaluator_environment({"PYTHONPATH": "/b"}, "/b")


def test_its_end_is_waited_for(start: Start) -> None:
    evaluator = start("import sys; sys.stdin.read()")
    ticks: list[float] = []
    with SignalWatch() as signals:
        assert wait_for(evaluator, signals, tick=ticks.append)
    assert evaluator.completed
    assert ticks
    assert ticks == sorted(ticks)


def test_it_is_ended_when_patience_ends(start: Start) -> None:
    evaluator = start("import time; time.sleep(600)")
    with SignalWatch() as signals:
        assert not wait_for(evaluator, signals, patience_s=0.2)
    assert evaluator.over
    assert not evaluator.completed


def test_ctrl_c_ends_the_wait(start: Start) -> None:
    evaluator = start("import time; time.sleep(600)")
    with SignalWatch() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert not wait_for(evaluator, signals, patience_s=PATIENCE_S)


def test_one_that_fails_to_the_last_is_no_reason_to_wait(start: Start) -> None:
    evaluator = start("raise SystemExit(3)")
    with SignalWatch() as signals:
        assert wait_for(evaluator, signals)
    assert not evaluator.completed


def test_signals_act_as_before_afterwards() -> None:
    with SignalWatch():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_where_signals_cannot_be_asked_handlers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SignalWatch()
    monkeypatch.setattr(watch, "_exact", False)
    before = signal.getsignal(signal.SIGTERM)
    with watch:
        assert watch.wait(0.01) is None
        os.kill(os.getpid(), signal.SIGTERM)
        arrival = watch.wait(60.0)
    assert arrival is not None
    assert (arrival.number, arrival.shared) == (signal.SIGTERM, False)
    assert signal.getsignal(signal.SIGTERM) is before
