"""Tests that need it run in a process of their own, and a failed test of CI is tried once more, alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
CONFTEST = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\npytest_plugins = ('own_process', 'retried')\n"
ALONE = """
import os, sys, pytest
pytestmark = pytest.mark.own_process

def test_has_nothing_of_the_others():
    assert not hasattr(sys, "left_behind")

@pytest.mark.parametrize("word", ["a b", "[x]"])
def test_with_parameters(word, tmp_path):
    print("its output")
    assert word != "[x]", "the second one fails"

@pytest.mark.skip(reason="none")
def test_skipped(): ...

def test_dies():
    os.kill(os.getpid(), 9)
"""
SLOW = """
import time, pytest
pytestmark = pytest.mark.own_process

@pytest.mark.parametrize("number", range(3))
def test_takes_a_moment(number):
    time.sleep(0.7)
"""
FIRST = """
import sys
def test_leaves_something():
    sys.left_behind = 1
"""
FLAKY = """
import os, sys, pathlib
def test_fails_with_others():
    assert not hasattr(sys, "left_behind"), "the state of another test"
def test_fails_always():
    assert os.environ.get("GOOD")
"""


def run(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WATCHGLASS_TEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options, str(folder)],
        cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def written(folder: Path, **files: str) -> Path:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "1", "--dist", "loadfile")], ids=["one process", "xdist"])
def test_a_file_runs_in_its_own_process_and_its_reports_are_passed_on(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, out = run(written(tmp_path, test_a=FIRST, test_b=ALONE, test_c=FIRST.replace("1", "2")), *options)
    assert status == 1
    assert "2 failed, 4 passed, 1 skipped" in out
    assert "the second one fails" in out
    assert "its output" in out
    assert "did not run this test to its end: exit status -9" in out


@pytest.mark.slow
def test_the_time_limit_of_a_test_is_not_that_of_its_file(tmp_path: Path) -> None:
    folder = written(tmp_path, test_a=SLOW)
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 2\n")
    status, out = run(folder)
    assert (status, "3 passed" in out) == (0, True), out


@pytest.mark.slow
def test_a_test_that_passes_alone_is_listed_as_flaky_and_fails_nothing(tmp_path: Path) -> None:
    written(tmp_path, test_a=FIRST, test_b=FLAKY)
    status, out = run(tmp_path, WATCHGLASS_TEST_RETRY="1", GOOD="yes")
    assert (status, "2 passed, 1 flaky" in out) == (0, True), out
    assert "FLAKY test_b.py::test_fails_with_others" in out
    assert "the state of another test" in out
    status, out = run(tmp_path, WATCHGLASS_TEST_RETRY="1")
    assert (status, "1 failed, 1 passed, 1 flaky" in out) == (1, True), out
    status, out = run(tmp_path, GOOD="yes")
    assert (status, "1 failed, 2 passed" in out) == (1, True), out
