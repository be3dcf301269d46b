"""Optimizers that take turns are captured in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from watchglass.capture.turns import Turns


def captured(order: Iterable[str], interval: int, steps: int) -> dict[str, list[int]]:
    """Captured steps by who updated in them."""
    turns = Turns(lambda step: step % interval == 0)
    found: dict[str, list[int]] = {}
    for step, who in zip(range(steps), order, strict=False):
        due = turns.opens(step)
        turns.ended({ord(letter) for letter in who}, captured=due)
        if due:
            found.setdefault(who, []).append(step)
    return found


def test_one_optimizer_is_captured_as_planned() -> None:
    assert captured(itertools.repeat("a"), 10, 41) == {"a": [0, 10, 20, 30, 40]}


def test_several_optimizers_in_each_step_are_captured_as_planned() -> None:
    assert captured(itertools.repeat("ab"), 10, 41) == {"ab": [0, 10, 20, 30, 40]}


@pytest.mark.parametrize("interval", [2, 4, 10, 16])
def test_two_in_turn_are_captured_one_after_the_other(interval: int) -> None:
    found = captured(itertools.cycle("ab"), interval, 10 * interval)
    assert found["a"] == list(range(0, 10 * interval, interval))
    # That there is a second shows at step 1, that it comes after the first at step 3.
    assert found["b"] == sorted({3, *range(interval + 1, 10 * interval, interval)})


def test_one_that_comes_rarely_is_captured_when_it_comes() -> None:
    found = captured(itertools.cycle("aaaaab"), 16, 160)
    assert set(range(0, 160, 16)) <= set(found["a"]) | set(found["b"])
    rare = list(range(5, 160, 6))
    # Once between two planned steps, or as one of them.
    for start in range(16, 144, 16):
        assert [step for step in found["b"] if start <= step < start + 16], start
    assert set(found["b"]) <= set(rare)
    assert len(found["a"]) + len(found["b"]) <= 2 * 10 + 1


def test_a_step_that_is_like_an_earlier_one_is_asked_for_as_that() -> None:
    asked: list[int] = []

    def due(step: int) -> bool:
        asked.append(step)
        return step % 8 == 0

    turns = Turns(due)
    for step, who in zip(range(10), itertools.cycle([1, 2]), strict=False):
        asked.clear()
        turns.ended({who}, captured=turns.opens(step))
    assert asked == [9, 8]


def test_updates_of_nobody_take_no_turn() -> None:
    turns = Turns(lambda step: step == 0)
    for step in range(5):
        assert turns.opens(step) is (step == 0)
        turns.ended(set(), captured=step == 0)
