"""A stored histogram as the buckets of TensorBoard."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watchglass.stats import Histograms, column, edges, finite_count

_LARGEST = float(np.finfo(np.float32).max)


def buckets_of(histograms: Histograms, row: int, statistics: NDArray[np.float64]) -> NDArray[np.float32] | None:
    """The finite elements of a tensor as buckets, float32[k, 3]: left, right, count; None where there are none.

    The bins are those of the run. In addition, the outermost edges are the exact minimum and maximum, zeros are a
    bucket from 0 to 0, and each gap is a bucket without elements, because TensorBoard takes the right edge of a bucket
    as the left one of the next. Counts of a sample are scaled to the whole tensor.

    Args:
        histograms: Histograms of many tensors.
        row: Which of them.
        statistics: The row of statistics of that tensor, float64[11].
    """
    finite, zero = float(finite_count(statistics[None])[0]), float(column(statistics, "zero"))
    keys, counts = histograms.row(row)
    if not finite or (not len(keys) and not zero):
        return None
    low, high = edges(keys)
    weights = counts.astype(np.float64)
    if len(weights):
        weights *= (finite - zero) / weights.sum()
    if zero:
        at = int(np.searchsorted(keys, 0))
        low, high, weights = np.insert(low, at, 0.0), np.insert(high, at, 0.0), np.insert(weights, at, zero)
    low[0], high[-1] = column(statistics, "min"), column(statistics, "max")
    gaps = np.flatnonzero(low[1:] > high[:-1]) + 1
    left, right = np.insert(low, gaps, high[gaps - 1]), np.insert(high, gaps, low[gaps])
    found = np.stack([left, right, np.insert(weights, gaps, 0.0)], axis=1)
    return np.clip(found, -_LARGEST, _LARGEST).astype(np.float32)
