"""Words for numbers."""

from __future__ import annotations

import pytest

from watchglass.records import count, in_percent, rounded


@pytest.mark.parametrize(
    ("amount", "noun", "plural", "expected"),
    [
        (0, "step", "", "0 steps"), (1, "step", "", "1 step"), (1200, "row", "", "1,200 rows"),
        (1, "further series", "further series", "1 further series"), (2, "series", "series", "2 series"),
    ],
)  # fmt: skip
def test_one_is_one_and_more_are_more(amount: int, noun: str, plural: str, expected: str) -> None:
    assert count(amount, noun, plural) == expected


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (12.34, 1, "12.3"), (12.34, 0, "12"), (0.0, 1, "0.0"), (0.04, 1, "0.04"), (3e-9, 2, "3e-09"),
        (-0.004, 2, "-0.004"),        (0.5, 0, "0.5"), (float("nan"), 1, "nan"), (float("inf"), 0, "inf"),
    ],
)  # fmt: skip
def test_what_is_not_zero_is_never_rounded_to_zero(value: float, digits: int, expected: str) -> None:
    assert rounded(value, digits) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, "0 %"), (1e-9, "under 1 %"), (0.006, "1 %"), (0.83, "83 %"), (0.999, "over 99 %"),
     (1.0, "100 %"), (2.5, "250 %")],
)  # fmt: skip
def test_only_all_is_all_and_only_nothing_is_nothing(ratio: float, expected: str) -> None:
    assert in_percent(ratio) == expected
