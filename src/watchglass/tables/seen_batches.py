"""Which batches of an evaluation are training data, by how many of their rows training steps have had.

A script may evaluate its training split and its validation split in turn, with no training step in between. Training
steps are noted now and then only, so that even of the training split often few rows are known. But of other data there
are next to none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Rows that must be known, and how much greater their share must be than among the other batches.
_LEAST_ROWS, _CLEARLY = 8, 5.0
#: Looks at the level that separates both sorts of batches: the first is their mean.
_LOOKS = 3


def seen_block(rows: Sequence[float], seen: Sequence[float]) -> tuple[int, int]:
    """The range of the batches that are training data, half-open; ``(0, 0)`` if all are alike as far as is known.

    Args:
        rows: Number of examined rows of each batch, in order; 0 where none was examined.
        seen: How many of them training steps have had.
    """
    nothing = 0, 0
    known = np.flatnonzero(np.asarray(rows, np.float64) > 0)
    if len(known) < 2:
        return nothing
    number, hits = np.asarray(rows, np.float64)[known], np.asarray(seen, np.float64)[known]
    level = hits.sum() / number.sum()
    for _ in range(_LOOKS):
        begin, end = _greatest(hits - level * number)
        inside, total = hits[begin:end].sum(), number[begin:end].sum()
        if total == number.sum() or not total:
            return nothing
        outside = (hits.sum() - inside) / (number.sum() - total)
        level = (inside / total + outside) / 2
    at_edge = begin == 0 or end == len(known)
    often = 2 * np.count_nonzero(hits[begin:end]) >= end - begin
    if not at_edge or not often or inside < _LEAST_ROWS or inside / total < _CLEARLY * outside:
        return nothing
    # Batches that were not examined belong to those before them.
    last = len(rows) if end == len(known) else int(known[end])
    return (0 if begin == 0 else int(known[begin])), last


def _greatest(values: NDArray[np.float64]) -> tuple[int, int]:
    """The range with the greatest sum, half-open (Kadane's algorithm)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    return int(np.flatnonzero(sums[: end + 1] == lowest[end])[-1]), end
