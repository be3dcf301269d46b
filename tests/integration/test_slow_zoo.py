"""The slow programs: what they are right for, what their page says, and one of them live."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from watchglass.rules import built_in_knowledge


@pytest.fixture(scope="module")
def members(repository: Path) -> ModuleType:
    path = repository / "benchmarks" / "slow_zoo" / "slow_members.py"
    spec = importlib.util.spec_from_file_location("slow_members", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slow_members"] = module
    spec.loader.exec_module(module)
    return module


def test_each_of_the_thirteen_has_a_program_and_causes_that_exist(repository: Path, members: ModuleType) -> None:
    programs = repository / "benchmarks" / "slow_zoo" / "programs"
    assert len(members.MEMBERS) == 13
    for member in members.MEMBERS:
        assert member.causes <= set(built_in_knowledge().causes), member.name
        assert (programs / f"{member.name}.py").exists() is not bool(member.needs_gpu), member.name
    assert {path.stem for path in programs.glob("*.py")} <= {"task", *(member.name for member in members.MEMBERS)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_program"], "there is no program no_such_program"),
        (["--write", "kept_graphs"], "--write is for all programs"),
    ],
)
def test_wrong_arguments_are_refused(repository: Path, arguments: list[str], message: str) -> None:
    answer = _judged(repository, *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr


def test_the_page_has_a_row_for_each_program_and_the_sum_of_them(repository: Path, members: ModuleType) -> None:
    page = (repository / "docs" / "slow-programs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)[2:]
    assert [row[0] for row in rows] == [member.slow for member in members.MEMBERS]
    right, run, silent = map(int, re.findall(r"first in (\d+) of (\d+) slow programs, and (\d+) of", page)[0])
    assert right == sum(row[2] == "yes" for row in rows)
    assert run == sum("not run" not in row[2] for row in rows)
    assert silent == sum(row[3] == "silent" for row in rows)


@pytest.mark.slow
def test_a_slow_program_gets_its_bottleneck_first(repository: Path, tmp_path: Path) -> None:
    """The one that depends least on the load of the machine."""
    answer = _judged(repository, "--folder", str(tmp_path), "item_in_the_loop")
    assert "item_in_the_loop: numbers_read_one_by_one" in answer.stdout, answer.stderr
    assert "in 1 of 1 slow programs" in answer.stdout


def _judged(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "benchmarks" / "slow_zoo" / "slow_zoo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
