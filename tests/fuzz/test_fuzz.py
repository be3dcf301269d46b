"""Hostile bytes into everything that reads some, for a short time; ``make fuzz`` goes on for as long as one likes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from fuzz.bounds import bounded, peak_bytes
from fuzz.choices import Choices
from fuzz.targets import TARGETS
from fuzz.whole_runs import _add_rings

RUN = Path(__file__).with_name("run.py")

#: Whole runs take some ten milliseconds each.
_EXAMPLES = {name: 15 if name.startswith("run_") else 100 for name in TARGETS}
_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_only_our_errors_come_out_in_bounded_time_and_memory(name: str) -> None:
    TARGETS[name](Choices(b""))
    before = peak_bytes()

    @settings(max_examples=_EXAMPLES[name], suppress_health_check=_SUPPRESSED)
    @example(b"\xff" * 200)
    @given(st.binary(min_size=8, max_size=200))
    def check(data: bytes) -> None:
        with bounded(before):
            TARGETS[name](Choices(data))

    check()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "report"], "--target must be one of claims, "),
        (["--replay", "input"], "--replay needs one --target but got 0"),
    ],
)
def test_options_that_are_wrong_are_refused_in_one_line(options: list[str], said: str) -> None:
    ended = subprocess.run([sys.executable, str(RUN), *options], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1


PLANTED = """
import time
from fuzz.choices import Choices

def raises(choices):
    if choices.number(4) == 3:
        raise ZeroDivisionError("planted")

def hogs(choices):
    if choices.number(4) == 3:
        bytearray(3 << 30)

def dies(choices):
    import os
    if choices.number(4) == 3:
        os.abort()

def fine(choices):
    choices.content(10)

def endless(choices):
    if choices.number(4) == 3:
        open("/dev/zero", "rb").read()

TARGETS = {each.__name__: each for each in (raises, hogs, dies, fine, endless)}
"""


#: Address space of a runner here: should its own bounds fail, this machine is none the worse.
_HARMLESS = 8 << 30


def fuzz(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(RUN), "--findings", str(folder / "found"), *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=250, check=False, env={"PYTHONPATH": str(folder), "PATH": ""},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_HARMLESS, _HARMLESS)),
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("target", "expected"),
    [("raises", "ZeroDivisionError: planted"), ("hogs", "TooMuch"), ("dies", "status -6"), ("fine", "")],
)
def test_the_runner_notices_what_goes_wrong(tmp_path: Path, target: str, expected: str) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    status, output = fuzz(
        tmp_path, "--targets", "planted:TARGETS", "--target", target, "--seconds", "0.5", "--engine", "chance"
    )
    assert status == (1 if expected else 0), output
    assert expected in output
    if expected.startswith(("ZeroDivision", "TooMuch")):
        (found,) = (tmp_path / "found" / target).glob("*.input")
        assert found.read_bytes()[0] % 4 == 3


def test_an_input_that_is_replayed_has_the_same_bounds(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "input").write_bytes(b"\x03")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    for target in ("endless", "hogs"):
        arguments = ("--targets", "planted:TARGETS", "--target", target, "--replay", str(tmp_path / "input"))
        status, output = fuzz(tmp_path, *arguments)
        assert status == 1
        assert "MemoryError" in output or "TooMuch" in output
    grown = max(0, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before) << 10
    assert grown < 6 << 30


def test_links_of_our_own_are_not_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "attempts").mkdir(parents=True)
    (run / "run.json").symlink_to("/dev/zero")
    with bounded(peak_bytes()):
        _add_rings(run, Choices(b"\x01" * 50))
    assert b'"run": "' + b"0" * 32 in (run / "attempts/0001/.x.entries").read_bytes(), "nothing was read of it"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["chance", "atheris"])
def test_a_moment_of_some_in_processes_of_their_own_finds_nothing(tmp_path: Path, engine: str) -> None:
    """Of all of them, inputs are drawn above, in this process; the runner starts a process for each."""
    if engine == "atheris":
        pytest.importorskip("atheris")
    some = sorted(TARGETS)[::5]
    chosen = [word for name in some for word in ("--target", name)]
    status, output = fuzz(tmp_path, "--seconds", str(0.1 * len(some)), "--engine", engine, *chosen)
    assert status == 0, output
