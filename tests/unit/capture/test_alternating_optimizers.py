"""Optimizers that take turns are captured in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from watchglass.capture.planning.alternating_optimizers import AlternatingOptimizers


def captured(order: Iterable[str], interval: int, steps: int) -> dict[str, list[int]]:
    """Captured steps by who updated in them."""
    turns = AlternatingOptimizers(
        lambda step, model: step % interval == 0, lambda step, model: -(-step // interval) * interval
    )
    found: dict[str, list[int]] = {}
    for step, who in zip(range(steps), order, strict=False):
        due = turns.opens(step, 0)
        turns.ended(0, {ord(letter) for letter in who}, step, captured=due)
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

    def due(step: int, model: int) -> bool:
        asked.append(step)
        return step % 8 == 0

    turns = AlternatingOptimizers(due, lambda step, model: -(-step // 8) * 8)
    for step, who in zip(range(10), itertools.cycle([1, 2]), strict=False):
        asked.clear()
        turns.ended(0, {who}, step, captured=turns.opens(step, 0))
    assert asked == [9, 8]


def test_updates_of_no_optimizer_take_no_turn() -> None:
    turns = AlternatingOptimizers(lambda step, model: step == 0, lambda step, model: step and 1 << 62)
    for step in range(5):
        assert turns.opens(step, None) is (step == 0)
        turns.ended(0, set(), step, captured=step == 0)


def captured_of_models(order: Iterable[int], interval: int, steps: int, called: Iterable[int]) -> dict[int, list[int]]:
    """Captured steps by model, each by its own number."""
    turns = AlternatingOptimizers(
        lambda step, model: step % interval == 0, lambda step, model: -(-step // interval) * interval
    )
    found: dict[int, list[int]] = {}
    for step, model, first in zip(range(steps), order, called, strict=False):
        due = turns.opens(step, first)
        own = turns.ended(model, {model}, step, captured=due)
        if due:
            found.setdefault(model, []).append(own)
    return found


@pytest.mark.parametrize("interval", [2, 4, 10])
def test_models_in_turn_are_captured_each_by_its_own_steps(interval: int) -> None:
    found = captured_of_models(itertools.cycle([0, 1]), interval, 200, itertools.cycle([0, 1]))
    assert found == {0: list(range(0, 100, interval)), 1: list(range(0, 100, interval))}


def test_a_model_that_another_one_s_call_begins_the_steps_of_is_captured_from_when_that_is_known() -> None:
    # A generator is called first in the steps of its critic as well.
    found = captured_of_models(itertools.cycle([1, 1, 1, 0]), 4, 400, itertools.repeat(0))
    assert set(found[0]) >= set(range(4, 100, 4))
    assert set(found[1]) >= set(range(4, 300, 4))
    assert len(found[0]) + len(found[1]) <= 104


def test_the_next_training_run_in_a_process_is_captured_from_its_first_step() -> None:
    order = [fold for fold in range(3) for _ in range(50)]
    found = captured_of_models(order, 20, 150, order)
    assert found == {fold: [0, 20, 40] for fold in range(3)}


def test_steps_before_this_process_are_the_first_model_s() -> None:
    turns = AlternatingOptimizers(lambda step, model: step % 10 == 0, lambda step, model: -(-step // 10) * 10)
    assert not turns.opens(1005, 0)
    turns.ended(0, {0}, 1005, captured=False)
    turns.passed(0, 3)
    assert turns.next_due(0, 1009) == 1010
    assert not turns.opens(1009, 0)
    turns.ended(0, {0}, 1009, captured=False)
    assert turns.opens(1010, 0)
    turns.ended(0, {0}, 1010, captured=True)
    assert turns.own_step(1, 1011) == 0


@pytest.mark.parametrize("model", [0, 1])
def test_the_next_planned_step_is_the_same_before_and_after_the_open_one_ends(model: int) -> None:
    turns = AlternatingOptimizers(lambda step, model: step % 8 == 0, lambda step, model: -(-step // 8) * 8)
    for step in range(20):
        trained = model if step > 9 else 0
        turns.ended(trained, {trained}, step, captured=turns.opens(step, trained))
    turns.opens(20, model)
    found = turns.next_due(model, 21)
    turns.ended(model, {model}, 20, captured=False)
    assert found == turns.next_due(model, 21) == (26 if model else 24)
