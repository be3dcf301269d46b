"""The course of a series in windows that widen with the length of the run, so that any run has about as many.

A window has 16 blocks in a row. Its level is the median of their means and its error follows from their scatter. So
neither single spikes nor the correlation of neighbours make a difference look certain.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from watchglass.rules import levels
from watchglass.stats import median

_BLOCKS = 16
#: Blocks from which the last window counts although it is not complete.
_ENOUGH = 6
#: Number of windows at which neighbours are joined, and later ones are twice as wide.
_MOST = 24


class Level(NamedTuple):
    """The level of a window."""

    value: float  #: Median of the means of its blocks.
    error: float  #: Standard error of this median.

    def above(self, other: Level) -> float:
        """How many standard errors it lies above another one; infinite for different values without errors."""
        apart, error = self.value - other.value, math.hypot(self.error, other.error)
        return apart / error if error > 0 else math.copysign(math.inf, apart) if apart else 0.0


def empty() -> dict[str, Any]:
    """A course without values."""
    return {"width": 1, "sum": 0.0, "count": 0, "blocks": [], "windows": []}


def follow(course: dict[str, Any], value: float) -> bool:
    """Add a finite value. Returns whether it completed a window."""
    course["sum"] += value
    course["count"] += 1
    if course["count"] < course["width"]:
        return False
    course["blocks"].append(course["sum"] / course["count"])
    course["sum"], course["count"] = 0.0, 0
    if len(course["blocks"]) < _BLOCKS:
        return False
    course["windows"].append(list(_level(course["blocks"])))
    course["blocks"] = []
    if len(course["windows"]) >= _MOST:
        pairs = zip(course["windows"][::2], course["windows"][1::2], strict=True)
        course["windows"] = [[(a[0] + b[0]) / 2, math.hypot(a[1], b[1]) / 2] for a, b in pairs]
        course["width"] *= 2
    return True


def windows(course: dict[str, Any]) -> list[Level]:
    """The levels of its windows, oldest first; the last one may be incomplete."""
    found = [Level(*each) for each in course["windows"]]
    return [*found, _level(course["blocks"])] if len(course["blocks"]) >= _ENOUGH else found


def settled_at(course: dict[str, Any], within: float) -> int:
    """Number of values before the windows that all lie at most a share above the level of the last one.

    Args:
        course: The course.
        within: The share.
    """
    found = windows(course)
    high = [at for at, each in enumerate(found) if each.value > (1 + within) * found[-1].value + 2 * each.error]
    return (high[-1] + 1 if high else 0) * _BLOCKS * int(course["width"])


def thirds(found: list[Level]) -> tuple[Level, Level]:
    """The levels of the first and of the last third of windows, at least one."""
    third = max(1, len(found) // 3)
    return _joined(found[:third]), _joined(found[-third:])


def falls(found: list[Level]) -> bool:
    """Whether the last third of windows lies certainly below the first third."""
    first, last = thirds(found)
    return len(found) > 2 and first.above(last) > 4


def _joined(found: list[Level]) -> Level:
    return Level(
        sum(each.value for each in found) / len(found), math.hypot(*(each.error for each in found)) / len(found)
    )


def _level(blocks: list[float]) -> Level:
    """The level of blocks; 1.2533 is the ratio of the errors of median and mean of a normal distribution."""
    return Level(median(blocks), 1.2533 * levels.spread(blocks) / math.sqrt(len(blocks)))
