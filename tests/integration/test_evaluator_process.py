"""An evaluator's process: its configuration, its lifeline, its signs of life, its end in every case."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waiting import PATIENCE_S, until
from watchglass.config import EvaluatorConfig, EvaluatorTiming, RuleSpec
from watchglass.errors import LaunchError
from watchglass.supervise import CompanionProcess

pytestmark = pytest.mark.own_process

CONFIG = EvaluatorConfig(run="run", attempt=0, rules=(RuleSpec("DeadRelu"),), timing=EvaluatorTiming(termination_s=0.2))

Start = Callable[[str], CompanionProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an "evaluator" that runs given code instead."""
    started: list[CompanionProcess] = []

    def begin(code: str) -> CompanionProcess:
        started.append(CompanionProcess(CONFIG, os.environ, (sys.executable, "-c", code)))
        return started[-1]

    yield begin
    for process in started:
        process.end()
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_it_reads_its_configuration_and_ends_when_the_lifeline_is_let_go(start: Start, tmp_path: Path) -> None:
    process = start(f"import sys; open({str(tmp_path / 'read')!r}, 'w').write(sys.stdin.readline()); sys.stdin.read()")
    until(lambda: (tmp_path / "read").exists() and (tmp_path / "read").read_text().endswith("\n"))
    assert EvaluatorConfig.from_line((tmp_path / "read").read_text()).rules == CONFIG.rules
    assert process.poll() is None
    process.let_go()
    assert process.wait(PATIENCE_S) == 0


def test_a_process_that_was_forked_meanwhile_does_not_keep_it(start: Start) -> None:
    """As workers of a data loader are, which outlive the end of the training run by a moment."""
    process = start("import sys; sys.stdin.read()")
    worker = os.fork()
    if not worker:
        signal.pause()
        os._exit(0)
    try:
        process.let_go()
        assert process.wait(PATIENCE_S) == 0
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_it_shows_that_it_lives(start: Start) -> None:
    process = start("import os, sys; sys.stdin.readline(); os.write(0, b'..'); sys.stdin.read()")
    assert until(process.shows_life)
    assert not process.shows_life()
    process.let_go()
    assert process.wait(PATIENCE_S) == 0
    assert not process.shows_life()


def test_one_that_works_on_after_the_end_of_the_run_still_shows_that_it_lives(start: Start) -> None:
    """Otherwise one that evaluates the last steps for long would be taken for hung."""
    process = start("import os, sys, time; sys.stdin.read(); os.write(0, b'.'); time.sleep(600)")
    process.let_go()
    assert until(process.shows_life)


def test_one_that_ends_without_reading_is_no_error(start: Start) -> None:
    process = start("raise SystemExit(3)")
    assert process.wait(PATIENCE_S) == 3
    assert not process.shows_life()


def test_one_that_cannot_be_started() -> None:
    with pytest.raises(LaunchError, match="the evaluator cannot be started: No such file"):
        CompanionProcess(CONFIG, os.environ, ["/nowhere/python"])


def test_it_is_killed_when_it_does_not_listen(start: Start, tmp_path: Path) -> None:
    process = start(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'deaf')!r}, 'w').close(); time.sleep(600)"
    )
    until((tmp_path / "deaf").exists)
    process.end()
    assert process.poll() == -signal.SIGKILL


def test_one_that_is_stopped_can_be_killed(start: Start) -> None:
    process = start("import time; time.sleep(600)")
    os.kill(process.pid, signal.SIGSTOP)
    process.kill()
    assert process.poll() == -signal.SIGKILL
