"""The budget of memory for what is read: taken before, given back after, and never more than there is."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from watchglass.config import environment, machine_bytes
from watchglass.errors import InvalidValueError, MemoryBudgetError
from watchglass.store import Charges, MemoryBudget


def test_what_is_not_left_is_refused_and_nothing_is_taken() -> None:
    budget = MemoryBudget(100 << 20)
    budget.take(60 << 20)
    with pytest.raises(MemoryBudgetError, match=r"takes 110 MiB of memory but at most 100 MiB .*READ_MEMORY"):
        budget.take(50 << 20)
    assert budget.used_bytes == 60 << 20


def test_charges_go_with_the_steps_they_are_for_and_with_their_owner() -> None:
    budget = MemoryBudget(1000)
    charges = Charges(budget)
    charges.add(100)
    for step in range(5):
        charges.add(10, step)
    charges.forget(3)
    assert budget.used_bytes == 120
    with pytest.raises(MemoryBudgetError):
        charges.add(10_000)
    del charges
    gc.collect()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("text", ["no", "-1", "1e9", "1000"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="WATCHGLASS_READ_MEMORY must be a number of bytes"):
        environment.read_memory_bytes({environment.READ_MEMORY: text})


def test_the_budget_comes_from_the_environment() -> None:
    assert environment.read_memory_bytes({"WATCHGLASS_READ_MEMORY": " 100000000 "}) == 100_000_000
    assert environment.read_memory_bytes({}) is None


@pytest.mark.parametrize(
    ("own", "file"),
    [("0::/a/b\n", "a/memory.max"), ("3:cpu:/\n4:memory:/docker/x\n", "memory/docker/x/memory.limit_in_bytes")],
)
def test_a_container_has_the_memory_that_it_is_allowed(tmp_path: Path, own: str, file: str) -> None:
    """Of any of the groups that a process is in; groups without a limit say "max"."""
    (tmp_path / "own").write_text(own)
    limit = tmp_path / "groups" / file
    (tmp_path / "groups/a/b").mkdir(parents=True)
    (tmp_path / "groups/a/b/memory.max").write_text("max\n")
    limit.parent.mkdir(parents=True, exist_ok=True)
    limit.write_text("123456789\n")
    assert machine_bytes(tmp_path / "groups", tmp_path / "own") == 123_456_789
    assert machine_bytes(tmp_path / "none", tmp_path / "none") > 123_456_789
