"""Whether the memory of a run grows steadily, from the least memory in each of equal windows of time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

#: Parts of a course: growth that levels off is missing in the last ones.
PARTS = 4
#: Windows in a part that are compared, and length of these windows in seconds.
PART_SIZES = (1, 2, 4, 8, 16)
WINDOW_S = 60.0
#: Parts of a window that are windows of the beginning of a run, before five of its windows are whole.
FINE = 12
#: Time at the end of a run in which memory is compared.
MEMORY_COURSE_S = (PARTS * PART_SIZES[-1] + 2) * WINDOW_S
#: Least growth that counts, in bytes and in percent of the least memory of the first part.
LEAST_BYTES, LEAST_PERCENT = 1e8, 5.0
#: Least share of the whole growth in each part after the first; in a straight line each has a third.
_STEADY = 0.2


def steady_growth(
    memory: Sequence[float], size: int, least_bytes: float = LEAST_BYTES, percent: float = LEAST_PERCENT
) -> tuple[int, int] | None:
    """The positions of the least memory of the first and the last part, if it grew steadily between them.

    Args:
        memory: The least memory in each window in bytes; the last ``PARTS * size`` are compared.
        size: Windows in a part.
        least_bytes: Least growth that counts.
        percent: The same relative to the least memory of the first part.
    """
    begin = len(memory) - PARTS * size
    if begin < 0:
        return None
    parts = (range(at, at + size) for at in range(begin, len(memory), size))
    least = [min(part, key=memory.__getitem__) for part in parts]
    rises = [memory[after] - memory[before] for before, after in pairwise(least)]
    first, last = least[0], least[-1]
    whole = memory[last] - memory[first]
    grew = whole >= max(least_bytes, percent / 100 * memory[first])
    return (first, last) if grew and min(rises) >= _STEADY * whole else None


class MemoryGrowth(NamedTuple):
    """Steady growth of the least memory in windows."""

    bytes: float  #: By how much it grew.
    seconds: float  #: The time between the two windows that are compared.
    reached: float  #: The memory in the last of them in bytes.
    highest_before: float  #: The most in windows before the first of them; 0 without any.


def growth_at_the_end(seconds: Any, values: Any) -> MemoryGrowth | None:
    """The longest steady growth at the end of a course, in the windows of the rule MemoryLeak; None if there is none.

    Args:
        seconds: Times of the samples, float64[n], ascending, from the first training step on.
        values: The memory at these times in bytes, float64[n], finite.
    """
    if not len(seconds):
        return None
    # At the beginning of a run windows of a part of its time, with a sample or more in each.
    shortest_s = max(1.0, float(seconds[-1] - seconds[0]) / (2 * PARTS + 3))
    when, least = list[float](), list[float]()
    for length_s in (WINDOW_S, WINDOW_S / FINE, shortest_s):
        if len(when) <= PARTS:
            when, least = _windows(seconds, values, length_s)
    longest = [found for size in PART_SIZES if (found := steady_growth(least, size)) is not None]
    if not longest:
        return None
    first, last = longest[-1]
    return MemoryGrowth(
        least[last] - least[first], when[last] - when[first], least[last], max(least[:first], default=0.0)
    )


def _windows(seconds: Any, values: Any, length_s: float) -> tuple[list[float], list[float]]:
    """The time of the least memory and that memory in each window; the first and the last are not whole."""
    import numpy as np  # a launcher that reads the needs of rules does not wait for it

    begins = np.flatnonzero(np.diff(seconds // length_s)) + 1
    parts = [begin + int(np.argmin(part)) for begin, part in zip(begins, np.split(values, begins)[1:-1], strict=False)]
    return [float(seconds[at]) for at in parts], [float(values[at]) for at in parts]
