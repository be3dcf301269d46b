"""Which batches of an evaluation are training data."""

from __future__ import annotations

import numpy as np
import pytest

from watchglass.tables.seen_batches import seen_block


def seen(shares: list[float], rows: int = 64) -> tuple[int, int]:
    return seen_block([rows] * len(shares), [share * rows for share in shares])


def test_the_training_split_is_told_apart_before_and_after_the_other_one() -> None:
    assert seen([0.9] * 10 + [0.0] * 10) == (0, 10)
    assert seen([0.0] * 10 + [1.0] * 30) == (10, 40)
    assert seen([1.0, 0.0]) == (0, 1)


def test_a_few_known_rows_are_enough_in_many_batches() -> None:
    random = np.random.default_rng(0)
    hits = np.concatenate([random.binomial(64, 0.07, 900), np.zeros(150)])
    begin, end = seen_block([64] * 1050, hits.tolist())
    assert begin == 0
    assert abs(end - 900) < 10


@pytest.mark.parametrize(
    "shares",
    [
        [], [0.5], [0.0] * 20, [1.0] * 20, [0.3, 0.5, 0.4, 0.6] * 5,  # one split
        [0.0] * 7 + [0.02] + [0.0] * 12,  # a copy of one sample
        [0.1, 0.0, 0.0, 0.0] * 8,  # some copies
        [0.0] * 8 + [0.9] * 2 + [0.0] * 8,  # in the middle
    ],
)  # fmt: skip
def test_batches_of_one_split_stay_together(shares: list[float]) -> None:
    assert seen(shares) == (0, 0)


def test_batches_that_were_not_examined_belong_to_those_before_them() -> None:
    assert seen_block([8, 0, 8, 0, 8, 0, 8, 0], [8, 0, 8, 0, 0, 0, 0, 0]) == (0, 4)
    assert seen_block([0, 0, 8, 8, 0, 8], [0, 0, 0, 0, 0, 8]) == (5, 6)
    assert seen_block([0] * 6, [0] * 6) == (0, 0)
