"""The zoo: known faults are found, known healthy programs are silent, and what its tools refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def score(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "benchmarks" / "zoo" / "score.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")  # its programs import PyTorch, each bare and watched
def test_verdicts_on_a_few_programs_are_right(repository: Path, tmp_path: Path) -> None:
    answer = score(repository, "--quick", "--jobs", "2", "--runs", str(tmp_path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("right") == 7


@pytest.mark.slow
def test_single_verdicts_of_the_held_out_half_are_refused(repository: Path, tmp_path: Path) -> None:
    answer = score(repository, "--half", "held-out", "--verdicts", str(tmp_path / "verdicts.md"))
    assert answer.returncode == 2
    assert "single verdicts of the held-out half stay unread" in answer.stderr


def test_each_fault_class_belongs_to_the_half_that_was_drawn_for_it(repository: Path) -> None:
    answer = score(repository, "--draw")
    drawn = {name: half for half, name in (line.split() for line in answer.stdout.splitlines())}
    classes = tomllib.loads((repository / "benchmarks" / "zoo" / "causes.toml").read_text(encoding="utf-8"))
    assert drawn == {name: fields["half"] for name, fields in classes.items()}
