"""The windows of training steps that are profiled, as users write them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from watchglass.errors import InvalidValueError

#: House: PyTorch keeps every event of a window in memory until its end, some thousands for each step.
MOST_PROFILED_STEPS = 1000
#: The same in seconds: house.
_MOST_SECONDS = 3600.0
_STEPS = re.compile(r"\s*(\d{1,18})\s*:\s*(\d{1,18})\s*", re.ASCII)
_SECONDS = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)s\s*:\s*(\d{1,9}(?:\.\d{1,9})?)s\s*", re.ASCII)


@dataclass(frozen=True)
class ProfiledRange:
    """A half-open range of training steps, or of seconds, to profile."""

    start: float  #: The first TRAIN step; with ``timed``, seconds since the first update of the training process.
    stop: float  #: The end, in the same unit. A window of seconds also ends after :data:`MOST_PROFILED_STEPS` steps.
    timed: bool = False  #: Whether both are seconds.

    def __str__(self) -> str:
        return f"{self.start:g}s:{self.stop:g}s" if self.timed else f"{self.start}:{self.stop}"


def profile_windows(texts: Iterable[str], *, adjoin: bool = True) -> tuple[ProfiledRange, ...]:
    """The windows: those of steps, ascending, then those of seconds.

    Args:
        texts: ``"START:STOP"`` each, for the training steps from START up to, without, STOP; or ``"60s:65s"``, for the
            steps that begin in that time since the first update.
        adjoin: Whether one may begin at the step at which another one ends.

    Raises:
        InvalidValueError: A text of another form, a window that begins at step 0, is empty or too long, overlaps
            another one of its unit, or adjoins it although it may not.
    """
    windows = sorted((_window(text) for text in texts), key=lambda window: (window.timed, window.start))
    for one, other in itertools.pairwise(windows):
        if one.timed == other.timed and _overlap(one, other):
            joined = ProfiledRange(one.start, max(one.stop, other.stop), one.timed)
            raise InvalidValueError(f"windows must not overlap but got {one} and {other}; use {joined}")
        if not (adjoin or other.timed) and one.stop == other.start:
            joined = ProfiledRange(one.start, other.stop)
            raise InvalidValueError(f"windows must lie a step apart but got {one} and {other}; use {joined}")
    return tuple(windows)


def first_overlap(
    one: Iterable[ProfiledRange], other: Iterable[ProfiledRange]
) -> tuple[ProfiledRange, ProfiledRange] | None:
    """The first window of each that overlap, None for none. Whether steps overlap seconds shows only in the run."""
    pairs = itertools.product(one, other)
    return next((pair for pair in pairs if pair[0].timed == pair[1].timed and _overlap(*pair)), None)


def _overlap(one: ProfiledRange, other: ProfiledRange) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _window(text: str) -> ProfiledRange:
    seconds = _SECONDS.fullmatch(text)
    if seconds is not None:
        window = ProfiledRange(float(seconds[1]), float(seconds[2]), timed=True)
        if not 0 < window.stop - window.start <= _MOST_SECONDS:
            raise InvalidValueError(f"must be at most {_MOST_SECONDS:.0f} seconds, and end after its begin, not {text}")
        return window
    steps = _STEPS.fullmatch(text)
    if steps is None:
        raise InvalidValueError(
            f"must be START:STOP, such as 100:105 for five training steps or 60s:65s for five seconds, but got {text!r}"
        )
    window = ProfiledRange(int(steps[1]), int(steps[2]))
    if not window.start:
        raise InvalidValueError(f"must begin at step 1 or later, because a window opens between two steps, not {text}")
    if not 1 <= window.stop - window.start <= MOST_PROFILED_STEPS:
        raise InvalidValueError(f"must have 1 to {MOST_PROFILED_STEPS} steps, STOP excluded, but got {text}")
    return window
