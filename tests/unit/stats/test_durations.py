"""Durations that are far longer than the others."""

from __future__ import annotations

import numpy as np
import pytest

from watchglass.stats import duration_class, duration_classes, last_typical_class


def typical(*seconds: float) -> list[bool]:
    classes = duration_classes(np.array(seconds))
    assert classes.tolist() == [duration_class(each) for each in seconds]
    numbers = {int(each): float((classes == each).sum()) for each in classes}
    return (classes <= last_typical_class(numbers)).tolist()


@pytest.mark.parametrize(("seconds", "is_typical"), [(0.9, True), (1.1, False), (0.001, True), (40.0, False)])
@pytest.mark.parametrize("scale", [1.0, 0.93, 1e-3])
def test_about_ten_times_the_median_is_far_longer(seconds: float, is_typical: bool, scale: float) -> None:
    *usual, last = typical(*[0.1 * scale] * 20, seconds * scale)
    assert usual == [True] * 20
    assert last is is_typical


def test_what_is_more_frequent_than_a_tenth_is_typical() -> None:
    assert typical(*[0.1] * 9, 5.0) == [*[True] * 9, False]
    assert all(typical(*[0.1] * 8, 5.0))


def test_damaged_records_are_not_longer_than_anything() -> None:
    assert typical(*[0.1] * 18, float("nan"), float("inf")) == [*[True] * 19, False]
    assert typical(0.0) == [True]
