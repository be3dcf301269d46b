"""The evaluator's process: its environment, its lifeline, its end in every case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waiting import until
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.launch import evaluator as module
from watchglass.launch.evaluator import EvaluatorProcess, evaluator_environment
from watchglass.launch.signals import SignalWatch

CONFIG = EvaluatorConfig(run="run", attempt=0, rules=(RuleSpec("DeadRelu"),))

Start = Callable[[str], EvaluatorProcess]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts an "evaluator" that runs given code instead."""
    started: list[EvaluatorProcess] = []

    def begin(code: str) -> EvaluatorProcess:
        popen = subprocess.Popen
        with monkeypatch.context() as patch:
            patch.setattr(
                module.subprocess, "Popen", lambda command, **more: popen([sys.executable, "-c", code], **more)
            )
            started.append(EvaluatorProcess(CONFIG, os.environ, "/b"))
        return started[-1]

    yield begin
    for process in started:
        process.end()
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_its_environment_is_without_capture() -> None:
    environ = {"WATCHGLASS_SESSION": "{}", "PYTHONPATH": f"/b{os.pathsep}lib", "HOME": "/h"}
    cleaned = evaluator_environment(environ, "/b")
    assert cleaned["WATCHGLASS"] == "0"
    assert cleaned["PYTHONPATH"] == "lib"
    assert cleaned["HOME"] == "/h"
    assert "WATCHGLASS_SESSION" not in cleaned
    assert "PYTHONPATH" not in evaluator_environment({"PYTHONPATH": "/b"}, "/b")


def test_it_ends_when_the_lifeline_is_let_go(start: Start) -> None:
    process = start("import sys; sys.stdin.read()")
    ticks: list[float] = []
    with SignalWatch() as signals:
        assert process.wait(signals, tick=ticks.append) == 0
    assert ticks
    assert ticks == sorted(ticks)


def test_it_is_ended_when_patience_ends(start: Start) -> None:
    process = start("import time; time.sleep(600)")
    with SignalWatch() as signals:
        assert process.wait(signals, patience_s=0.2) is None


def test_it_is_made_to_end_when_it_does_not_listen(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "TERMINATION_S", 0.2)
    process = start(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'deaf')!r}, 'w').close(); time.sleep(600)"
    )
    until((tmp_path / "deaf").exists)
    process.end()
    assert process._process.returncode == -signal.SIGKILL


def test_ctrl_c_ends_the_wait(start: Start) -> None:
    process = start("import time; time.sleep(600)")
    with SignalWatch() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert process.wait(signals) is None


def test_its_failure_is_told(start: Start) -> None:
    process = start("raise SystemExit(3)")
    with SignalWatch() as signals:
        assert process.wait(signals) == 3


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
