"""The windows of steps in which operators are profiled, as users write them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from watchglass.errors import InvalidValueError

#: House: PyTorch keeps every event of a window in memory until its end, some thousands for each step.
MOST_PROFILED_STEPS = 1000


def profile_windows(texts: Iterable[str]) -> tuple[range, ...]:
    """The windows, ascending, each a half-open range of training steps.

    Args:
        texts: ``"START:STOP"`` each, for the training steps from START up to, without, STOP.

    Raises:
        InvalidValueError: A text of another form, a window that begins at step 0, has no steps or too many, or overlaps
            another one.
    """
    windows = sorted((_window(text) for text in texts), key=lambda window: window.start)
    for one, other in itertools.pairwise(windows):
        if other.start < one.stop:
            raise InvalidValueError(
                f"windows must not overlap but got {one.start}:{one.stop} and {other.start}:{other.stop}; "
                f"use {one.start}:{max(one.stop, other.stop)}"
            )
    return tuple(windows)


def _window(text: str) -> range:
    found = re.fullmatch(r"\s*(\d{1,18})\s*:\s*(\d{1,18})\s*", text, re.ASCII)
    if found is None:
        raise InvalidValueError(f"must be START:STOP, such as 100:105 for five training steps, but got {text!r}")
    window = range(int(found[1]), int(found[2]))
    if not window.start:
        raise InvalidValueError(f"must begin at step 1 or later, because a window opens between two steps, not {text}")
    if not 1 <= window.stop - window.start <= MOST_PROFILED_STEPS:
        raise InvalidValueError(f"must have 1 to {MOST_PROFILED_STEPS} steps, STOP excluded, but got {text}")
    return window
