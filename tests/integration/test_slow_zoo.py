"""The slow programs: each is declared with causes that exist, and unknown ones are refused."""

from __future__ import annotations

import importlib.util
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


def test_each_of_the_twelve_has_a_program_and_causes_that_exist(repository: Path, members: ModuleType) -> None:
    programs = repository / "benchmarks" / "slow_zoo" / "programs"
    assert len(members.MEMBERS) == 12
    for member in members.MEMBERS:
        assert member.causes <= set(built_in_knowledge().causes), member.name
        assert (programs / f"{member.name}.py").exists() is not bool(member.needs_gpu), member.name
    assert {path.stem for path in programs.glob("*.py")} <= {"task", *(member.name for member in members.MEMBERS)}


def test_an_unknown_program_is_refused(repository: Path) -> None:
    command = [sys.executable, str(repository / "benchmarks" / "slow_zoo" / "slow_zoo.py"), "no_such_program"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "there is no program no_such_program" in answer.stderr
