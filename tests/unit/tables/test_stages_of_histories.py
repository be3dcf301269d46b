"""A new stage of the training has a history of its own."""

from __future__ import annotations

import math

import pytest

from watchglass.records import Mode, StepEnd
from watchglass.tables.history import History


def _history(losses: list[float]) -> History:
    history = History()
    for number, loss in enumerate(losses):
        end = StepEnd(number, Mode.TRAIN, number, number, 0, 0)
        history.add_scalar(end, "loss", loss)
    return history


FALLEN = [2.0 * 0.9**n for n in range(40)] + [0.02, 0.03, 0.025, 0.02] * 5


def test_the_series_of_a_stage_begins_with_it() -> None:
    before = _history(FALLEN)
    after = before.next_stage(0.7)
    assert len(after.series(Mode.TRAIN, "loss")) == 0
    assert len(before.series(Mode.TRAIN, "loss")) == len(FALLEN)
    assert (before.stage, after.stage) == (0, 1)


def test_a_loss_at_another_level_is_another_task() -> None:
    after = _history(FALLEN).next_stage(0.7)
    assert after.task == 1
    assert after.left_at is None


@pytest.mark.parametrize("loss", [0.02, 0.03, 0.035])
def test_a_loss_that_goes_on_is_the_same_task(loss: float) -> None:
    after = _history(FALLEN).next_stage(loss)
    assert after.task == 0
    assert after.left_at is not None
    assert after.left_at[0] == pytest.approx(0.0225)


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_an_unknown_loss_says_nothing_about_the_task(loss: float | None) -> None:
    after = _history(FALLEN).next_stage(loss)
    assert (after.stage, after.task, after.left_at) == (1, 0, None)
