"""The last two windows of steps, which rules about time hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from watchglass.rules import step_windows

LENGTH, ENOUGH = 4, 3


def added(held: dict[str, Any], steps: range) -> list[Any]:
    """What a rule judges while it sees these steps, by their numbers."""
    both = [step_windows.add(held, [float(n)], LENGTH) for n in steps if step_windows.note_step(held)]
    return [[[step for (step,) in rows] for rows in each] for each in both if each]


def after(steps: int) -> dict[str, Any]:
    """What a rule holds after so many training steps."""
    held = step_windows.empty()
    added(held, range(steps))
    return held


def test_each_window_is_judged_with_the_one_before() -> None:
    # Steps 0 to 7 are not judged, and the last one is in no whole window.
    assert added(step_windows.empty(), range(8 + 3 * LENGTH + 1)) == [
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[12, 13, 14, 15], [16, 17, 18, 19]],
    ]


def test_what_is_held_is_plain_json_and_does_not_grow() -> None:
    held = after(8 + 100 * LENGTH)
    assert json.loads(json.dumps(held)) == held
    assert len(held["rows"]) == 2 * LENGTH
    whole = added(step_windows.empty(), range(30))
    assert whole
    assert added(json.loads(json.dumps(after(11))), range(11, 30)) == whole


@pytest.mark.parametrize(
    ("judged", "rows"), [(ENOUGH - 1, 0), (ENOUGH, 3), (LENGTH, 4), (2 * LENGTH - 1, 7), (2 * LENGTH, 0), (50, 0)]
)
def test_a_short_run_is_judged_by_all_its_steps(judged: int, rows: int) -> None:
    short = step_windows.of_short_run(after(8 + judged), LENGTH, ENOUGH)
    assert [step for (step,) in short] == list(range(8, 8 + rows))


def test_its_halves_are_two_windows() -> None:
    short = step_windows.of_short_run(after(8 + 5), LENGTH, ENOUGH)
    assert step_windows.halves(short) == [[[8.0], [9.0]], [[10.0], [11.0], [12.0]]]
    assert step_windows.halves([]) == []


def test_too_few_steps_are_said_only_of_runs_that_train() -> None:
    assert step_windows.too_few(after(0), ENOUGH) == ""
    assert step_windows.too_few(after(1), ENOUGH) == "the run has 1 training step; 11 are needed"
    assert step_windows.too_few(after(8 + ENOUGH - 1), ENOUGH) == "the run has 10 training steps; 11 are needed"
    assert step_windows.too_few(after(8 + ENOUGH), ENOUGH) == ""
