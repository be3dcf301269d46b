"""How an evaluation is divided: all of it once, evenly, and by rules only where that is faster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from watchglass.errors import InvalidValueError
from watchglass.evaluate.scaling.contents import RunContents
from watchglass.evaluate.scaling.plan import LEAST_BYTES, PARTS_PER_CORE, Part, plan

MB = 1 << 20


def contents(run: str, *sizes: int) -> RunContents:
    return RunContents(run, {f"worker_{rank}": size for rank, size in enumerate(sizes)}, len(sizes))


def covered(parts: tuple[Part, ...], runs: list[RunContents], rules: int) -> Counter[tuple[str, str, int]]:
    """How often each rule is shown each worker of each run."""
    members = {run.run: tuple(run.workers) for run in runs}
    return Counter(
        (part.run, worker, rule)
        for part in parts
        for worker in (part.workers if part.workers is not None else members[part.run])
        for rule in (part.rules if part.rules is not None else range(rules))
    )


@given(
    sizes=st.lists(st.lists(st.integers(0, 400 * MB), min_size=1, max_size=30), min_size=1, max_size=5),
    rules=st.integers(1, 12),
    cores=st.integers(1, 64),
)
def test_every_rule_is_shown_every_worker_exactly_once(sizes: list[list[int]], rules: int, cores: int) -> None:
    runs = [contents(f"run{n}", *each) for n, each in enumerate(sizes)]
    parts = plan(runs, rules, cores)
    found = covered(parts, runs, rules)
    assert set(found) == {(run.run, worker, rule) for run in runs for worker in run.workers for rule in range(rules)}
    assert set(found.values()) == {1}
    assert parts == plan(runs, rules, cores)


def test_many_equal_workers_become_parts_of_equal_size_for_every_core() -> None:
    parts = plan([contents("run", *[10 * MB] * 1024)], 9, 32)
    assert len(parts) == 32 * PARTS_PER_CORE
    assert {part.bytes for part in parts} == {80 * MB}
    assert all(part.rules is None for part in parts)


def test_unequal_workers_are_evened_out() -> None:
    parts = plan([contents("run", *[(1 + rank % 7) * 3 * MB for rank in range(100)])], 9, 4)
    assert len(parts) == 16
    assert max(part.bytes for part in parts) < 1.2 * min(part.bytes for part in parts)


def test_little_is_not_divided() -> None:
    (part,) = plan([contents("run", *[LEAST_BYTES // 100] * 8)], 9, 64)
    assert part == Part("run", None, None, 8 * (LEAST_BYTES // 100))


def test_the_largest_comes_first() -> None:
    parts = plan([contents("a", 3 * MB), contents("b", 9 * MB), contents("c", 6 * MB)], 9, 1)
    assert [part.run for part in parts] == ["b", "c", "a"]


def test_one_worker_alone_is_divided_by_rules_as_far_as_that_pays() -> None:
    alone = [contents("run", 1000 * MB)]
    assert plan(alone, 9, 1) == (Part("run", None, None, 1000 * MB),)
    parts = plan(alone, 9, 4, reading_share=0.25)
    assert sorted(part.rules or () for part in parts) == [(0, 4, 8), (1, 5), (2, 6), (3, 7)]
    assert max(part.bytes for part in parts) == round(1000 * MB * (0.25 + 0.75 / 4))


def test_where_reading_is_everything_rules_are_not_divided() -> None:
    (part,) = plan([contents("run", 1000 * MB)], 9, 4, reading_share=1.0)
    assert part.rules is None


def test_rules_are_not_divided_where_others_fill_the_cores_meanwhile() -> None:
    parts = plan([contents("large", 100 * MB), contents("others", *[50 * MB] * 40)], 9, 8)
    assert all(part.rules is None for part in parts)


def test_a_plan_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least 1 core and 1 rule but got 0 cores"):
        plan([contents("run", MB)], 9, 0)
