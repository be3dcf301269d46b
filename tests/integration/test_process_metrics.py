"""Metrics of processes, compared with known loads and with what the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from waiting import until
from watchglass.profile import MetricSource, SourceUnavailableError
from watchglass.profile.sources import OpenFilesSource, ProcessesSource, ProcessTree

SECOND = 1_000_000_000


def read(source: MetricSource, now_ns: int) -> dict[str, Any]:
    """Numbers by metric, and by instance where there are several."""
    return {
        reading.metric.name: dict(zip(reading.metric.instances, reading.values, strict=True))
        if reading.metric.instances
        else reading.values[0]
        for reading in source.read(now_ns)
    }


class Program:
    """A process that runs code; ended with the test."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, code: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *words, "-c", code]
        self.started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return self.started[-1]


@pytest.fixture
def program() -> Iterator[Program]:
    found = Program()
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def test_processes_of_the_run_are_counted_without_those_beside_it(program: Program) -> None:
    child = program("import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])")
    beside = program("import sys; sys.stdin.read()  # watchglass.evaluate")
    until(lambda: len(psutil.Process(child.pid).children()) == 1)
    grandchild = psutil.Process(child.pid).children()[0].pid

    def found(with_root: bool) -> set[int]:
        return {process.pid for process in ProcessTree(os.getpid(), with_root).search()}

    assert found(True) - found(False) == {os.getpid()}
    assert found(False) >= {child.pid, grandchild, beside.pid}, "only a word of its own names a module"
    evaluator = program("import sys; sys.stdin.read()", "-X", "watchglass.evaluate")
    until(lambda: psutil.Process(evaluator.pid).cmdline())
    assert evaluator.pid not in found(False)
    psutil.Process(grandchild).kill()


def test_a_process_that_ends_between_search_and_reading_is_left_out(program: Program) -> None:
    child = program("input()")
    tree = ProcessTree(os.getpid(), True)
    until(lambda: child.pid in {each.pid for each in tree.search()})
    source = ProcessesSource(tree)
    assert str(child.pid) in read(source, 0)["process.memory"]
    child.kill()
    child.communicate()
    assert str(child.pid) not in read(source, SECOND)["process.memory"]
    assert read(OpenFilesSource(tree), SECOND)["processes.open_files"] > 0


def test_a_root_that_is_gone_is_said(program: Program) -> None:
    child = program("")
    child.communicate()
    with pytest.raises(SourceUnavailableError, match=f"process {child.pid} of the run"):
        ProcessTree(child.pid, True)


# Known loads, compared with what the kernel counts


@pytest.mark.slow
def test_the_processor_time_of_a_process_is_read_as_the_kernel_counts_it(program: Program) -> None:
    child = program(
        "import sys, time\nprint('ready', flush=True)\nfor line in sys.stdin:\n spent = time.process_time()\n"
        " while time.process_time() - spent < 1: pass\n print(flush=True)"
    )
    child.stdout.readline()
    tree = ProcessTree(child.pid, True)
    tree.search()
    source, process = ProcessesSource(tree), psutil.Process(child.pid)
    source.read(0)
    before = process.cpu_times()
    child.stdin.write(b"go\n")
    child.stdin.flush()
    child.stdout.readline()
    # It does nothing now. The times of the two readings are given: a second of two.
    after = process.cpu_times()
    found = read(source, 2 * SECOND)["processes.utilization"]
    assert found == pytest.approx(50 * (after.user + after.system - before.user - before.system), rel=0.05)
    assert found == pytest.approx(50, rel=0.1)


@pytest.mark.slow
def test_memory_that_grows_by_1_mb_a_step_is_read(program: Program) -> None:
    child = program(
        "import sys\nkept = []\nfor line in sys.stdin:\n kept.append(b'x' * 1_000_000); print(len(kept), flush=True)"
    )
    tree = ProcessTree(child.pid, True)
    tree.search()
    source, sizes = ProcessesSource(tree), []
    for _ in range(41):
        child.stdin.write(b"go\n")
        child.stdin.flush()
        child.stdout.readline()
        sizes.append(read(source, time.monotonic_ns())["processes.memory"])
    assert (sizes[-1] - sizes[0]) / 40 == pytest.approx(1e6, rel=0.1)


@pytest.mark.slow
def test_what_a_process_writes_is_read_as_the_kernel_counts_it(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "data"
    child = program(
        f"import os, sys\nfile = os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY)\n"
        "for line in sys.stdin:\n os.write(file, b'x' * 4_000_000); os.fsync(file); print(flush=True)"
    )
    tree = ProcessTree(child.pid, True)
    tree.search()
    source = ProcessesSource(tree)
    source.read(0)
    for _ in range(5):
        child.stdin.write(b"go\n")
        child.stdin.flush()
        child.stdout.readline()
    assert read(source, 10 * SECOND)["processes.write"] == pytest.approx(2e6, rel=0.1)
