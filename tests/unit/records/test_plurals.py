"""Words for numbers."""

from __future__ import annotations

import pytest

from watchglass.records import count


@pytest.mark.parametrize(
    ("amount", "noun", "plural", "expected"),
    [
        (0, "step", "", "0 steps"), (1, "step", "", "1 step"), (1200, "row", "", "1,200 rows"),
        (1, "further series", "further series", "1 further series"), (2, "series", "series", "2 series"),
    ],
)  # fmt: skip
def test_one_is_one_and_more_are_more(amount: int, noun: str, plural: str, expected: str) -> None:
    assert count(amount, noun, plural) == expected
