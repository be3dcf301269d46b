"""Waiting for what other threads and processes do, for as long as a slow and busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds that anything may take, with other tests running beside it; less than pytest gives a test, so that what did
#: not happen is said.
PATIENCE_S = 240.0

_T = TypeVar("_T")


def until(
    condition: Callable[[], _T],
    seconds: float = PATIENCE_S,
    *,
    pause_s: float = 0.01,
    despite: tuple[type[Exception], ...] = (),
) -> _T:
    """What ``condition`` gives, once it gives something.

    Args:
        condition: Asked again and again.
        seconds: After which the test fails.
        pause_s: Between two times.
        despite: What it may raise meanwhile, as if it gave nothing.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except despite:
            pass
        assert time.monotonic() < end, f"did not happen within {seconds:g} s"
        time.sleep(pause_s)
