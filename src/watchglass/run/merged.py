"""Statistics of one tensor from several workers, merged.

The *placement* of a tensor is the relation between the rows of several workers:

* ``shard``: each has a part of one tensor. Counts and sums are added, minima and maxima compared, ``m2`` follows Chan's
  formula, ``l2`` is the root of the sum of squares, histograms are added: the row of the whole tensor.
* ``local``: each has different data (activations, gradients before they are averaged). They are merged the same way,
  as if they were one tensor.
* ``replicated``: all have the same tensor. The row of the first one counts.
* ``partial``: the tensor is the sum of their tensors, whose statistics do not follow from theirs. Each row stays
  separate, with its worker's name.

Workers are merged in the order of their ranks, so that the same run gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import Histograms, merge, merge_histograms
from watchglass.store import StatisticsBatch

#: Placements by code.
PLACEMENTS = ("local", "shard", "replicated", "partial")
_SHARD, _REPLICATED = PLACEMENTS.index("shard"), PLACEMENTS.index("replicated")


class Merger:
    """Rows by key, merged in the order in which they are added.

    Args:
        histograms: Whether rows have histograms.

    Attributes:
        keys: Keys that were added, ascending, int64[n].
        values: float64[n, 11].
        calls: uint32[n]: for parts of one tensor the greatest number of any part, else their sum.
        sampled: bool[n]: whether any row was sampled.
        workers: Number of merged rows, int32[n].
        histograms: Histograms of the n rows; None where they are not needed.
    """

    def __init__(self, *, histograms: bool = False) -> None:
        self.keys = np.empty(0, np.int64)
        self.values = np.empty((0, len(STATISTIC_FIELDS)))
        self.calls = np.empty(0, np.uint32)
        self.sampled = np.empty(0, bool)
        self.workers = np.empty(0, np.int32)
        self.histograms: Histograms | None = Histograms.none(0) if histograms else None

    def add(self, keys: NDArray[np.int64], placement: NDArray[np.int8], batch: StatisticsBatch) -> None:
        """Add one worker's rows.

        Args:
            keys: The key of each row, int64[m], each at most once.
            placement: Index into :data:`PLACEMENTS` of each, int8[m].
            batch: The rows.
        """
        if not len(keys):
            return
        place = self._make_room(keys)
        first = self.workers[place] == 0
        more = ~first & (placement != _REPLICATED)
        new, old = place[first], place[more]
        self.values[new] = batch.values[first]
        self.calls[new], self.sampled[new] = batch.calls[first], batch.sampled[first]
        self.values[old] = merge(self.values[old], batch.values[more])
        parts = placement[more] == _SHARD
        self.calls[old] = np.where(
            parts, np.maximum(self.calls[old], batch.calls[more]), self.calls[old] + batch.calls[more]
        )
        self.sampled[old] |= batch.sampled[more]
        self.workers[place] += 1
        if self.histograms is not None:
            found = batch.histograms if batch.histograms is not None else Histograms.none(len(keys))
            chosen = np.full(len(self.keys), len(keys))
            chosen[place[first | more]] = np.flatnonzero(first | more)
            aligned = Histograms.concatenate([found, Histograms.none(1)]).take(chosen)
            self.histograms = merge_histograms(self.histograms, aligned)

    def _make_room(self, keys: NDArray[np.int64]) -> NDArray[np.intp]:
        """The place of each key's row; new keys get a row."""
        place = np.searchsorted(self.keys, keys)
        known = np.minimum(place, max(len(self.keys) - 1, 0))
        if len(self.keys) and (self.keys[known] == keys).all():
            return place
        merged = np.union1d(self.keys, keys)
        at = np.searchsorted(merged, self.keys)
        self.values = _spread(self.values, at, len(merged))
        self.calls = _spread(self.calls, at, len(merged))
        self.sampled = _spread(self.sampled, at, len(merged))
        self.workers = _spread(self.workers, at, len(merged))
        if self.histograms is not None:
            chosen = np.full(len(merged), len(self.keys))
            chosen[at] = np.arange(len(self.keys))
            self.histograms = Histograms.concatenate([self.histograms, Histograms.none(1)]).take(chosen)
        self.keys = merged
        return np.searchsorted(merged, keys)


def _spread(column: NDArray, at: NDArray[np.intp], size: int) -> NDArray:  # type: ignore[type-arg]
    found = np.zeros((size, *column.shape[1:]), column.dtype)
    found[at] = column
    return found
