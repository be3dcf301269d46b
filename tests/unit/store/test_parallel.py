"""Several requests at once, whenever."""

from __future__ import annotations

import threading

import pytest

from waiting import PATIENCE_S
from watchglass.store.media.parallel import at_once


def test_answers_come_in_the_order_of_the_items_and_calls_overlap() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def call(item: int) -> int:
        both.wait()
        return -item

    assert at_once(2, call, [1, 2, 3, 4]) == [-1, -2, -3, -4]


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_failure_is_raised_once(error: type[Exception]) -> None:
    calls: list[int] = []

    def call(item: int) -> None:
        calls.append(item)
        raise error(item)

    with pytest.raises(error):
        at_once(2, call, [1, 2, 3])
    assert len(calls) == len(set(calls))
