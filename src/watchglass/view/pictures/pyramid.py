"""Long series by buckets of 2^k steps, which keep extremes and never move.

A bucket of level k holds the steps whose numbers agree without their last k bits. So it is the same for every reader
and every range, and once a later step has come it never changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: A bucket: its last step, the least, the greatest and the last finite number (NaN without one), how many numbers it
#: has, and how many of them are not finite.
BUCKET = np.dtype([("step", "i8"), ("low", "f8"), ("high", "f8"), ("last", "f8"), ("count", "i8"), ("broken", "i8")])


class Pyramid:
    """One series by steps, in buckets of all sizes. For one thread."""

    def __init__(self) -> None:
        self._levels = [np.zeros(0, BUCKET)]

    def append(self, steps: NDArray[np.integer], values: NDArray[np.float64]) -> None:
        """Add numbers of later steps, ascending, after all that were added."""
        if not len(steps):
            return
        rows = np.zeros(len(steps), BUCKET)
        finite = np.isfinite(values)
        rows["step"], rows["count"], rows["broken"] = steps, 1, ~finite
        for name in ("low", "high", "last"):
            rows[name] = np.where(finite, values, np.nan)
        self._levels[0] = np.concatenate([self._levels[0], rows])
        first = int(steps[0])
        for level in range(1, 64):
            below = self._levels[level - 1]
            if int(below["step"][0]) >> level == int(below["step"][-1]) >> level and level >= len(self._levels):
                break  # everything is in one bucket
            known = self._levels[level] if level < len(self._levels) else below[:0]
            kept = known[: np.searchsorted(known["step"] >> level, first >> level)]
            again = below[np.searchsorted(below["step"] >> level, first >> level if len(kept) else -(1 << 62)) :]
            self._levels[level : level + 1] = [np.concatenate([kept, _merged(again, level)])]

    def within(self, first: int, last: int, width: int) -> NDArray[np.void]:
        """The buckets that hold the steps from ``first`` to ``last``, of the finest level with at most two for each
        of ``width`` pixels.
        """  # noqa: D205
        for level, rows in enumerate(self._levels):
            places = rows["step"] >> level
            part = slice(np.searchsorted(places, first >> level), np.searchsorted(places, last >> level, side="right"))
            found = rows[part]
            if len(found) <= 2 * width:
                break
        return found


def _merged(rows: NDArray[np.void], level: int) -> NDArray[np.void]:
    """Buckets of a level out of those of the level below."""
    places = rows["step"] >> level
    begins = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
    ends = np.append(begins[1:], len(rows)) - 1
    made = np.zeros(len(begins), BUCKET)
    made["step"] = rows["step"][ends]
    made["low"] = np.fmin.reduceat(rows["low"], begins)
    made["high"] = np.fmax.reduceat(rows["high"], begins)
    made["count"] = np.add.reduceat(rows["count"], begins)
    made["broken"] = np.add.reduceat(rows["broken"], begins)
    # The last number that is finite: there are at most two buckets to choose from.
    made["last"] = np.where(np.isfinite(rows["last"][ends]), rows["last"][ends], rows["last"][begins])
    return made
