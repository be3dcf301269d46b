"""Sketches of inputs as rows of numbers, which can be the state of a rule, and how far two sets of them are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from watchglass.records import facts

#: The shares below a quantile of an ``input_sketch``.
_SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
#: Quantiles of the earlier inputs that bound the bins of the index: the outer ones differ by chance.
_BOUNDS = slice(2, 9)
#: Least share of a bin: an empty one would make the index infinite.
_LEAST = 1e-3

Row = list[float]


def row_of(sketch: facts.InputSketch) -> Row | None:
    """``[mean, standard deviation, quantiles ...]``; None of integers and of equal values."""
    if sketch.mean is None or sketch.std is None or not sketch.std > 0:
        return None
    return [sketch.mean, sketch.std, *(sketch.quantiles or ())]


def stability_index(before: Sequence[Row], now: Sequence[Row]) -> float:
    """The population stability index of two sets of sketches: the sum over bins of (p - q) ln(p / q).

    Seven quantiles of the earlier inputs, in the median of their sketches, bound the bins. Equal ones count once.

    Args:
        before: Rows of the earlier inputs, at least one.
        now: Rows of the later ones, at least one.

    Returns:
        0 for equal distributions; at most 7 times the number of bins.
    """
    earlier, later = (np.asarray(rows)[:, 2:] for rows in (before, now))
    bounds = np.unique(np.median(earlier, axis=0)[_BOUNDS])
    expected, actual = (_shares(quantiles, bounds) for quantiles in (earlier, later))
    return float(np.sum((actual - expected) * np.log(actual / expected)))


def _shares(quantiles: npt.NDArray[np.float64], bounds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The share of the inputs in each bin, in the mean of the sketches."""
    below = np.mean([np.interp(bounds, each, _SHARES, left=0.0, right=1.0) for each in quantiles], axis=0)
    shares = np.maximum(np.diff(np.concatenate([[0.0], below, [1.0]])), _LEAST)
    return np.asarray(shares / shares.sum())
