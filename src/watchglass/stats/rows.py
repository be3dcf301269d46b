"""Rows of statistics: the reference for the tests of every kernel, and the exact merge.

A row is float64[11] with the columns of :data:`~watchglass.records.STATISTIC_FIELDS`; functions take any number of
rows, ``[..., 11]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats.elements import magnitudes

Rows = NDArray[np.float64]

_COUNT, _NAN, _POSINF, _NEGINF, _ZERO, _MIN, _MAX, _SUM, _ABS_SUM, _M2, _L2 = range(len(STATISTIC_FIELDS))
_ADDED = [_COUNT, _NAN, _POSINF, _NEGINF, _ZERO, _SUM, _ABS_SUM]


def empty(*shape: int) -> Rows:
    """Rows of no elements, the neutral element of :func:`merge`: float64[*shape, 11]."""
    rows = np.zeros((*shape, len(STATISTIC_FIELDS)))
    rows[..., _MIN] = rows[..., _MAX] = np.nan
    return rows


def of_array(array: ArrayLike) -> Rows:
    """The row of an array of any shape and of a boolean, integer, float or complex dtype: float64[11].

    Plain and exact rather than fast: everything in float64, in two passes. Integers beyond 2**53 are rounded. Of
    complex numbers it is the row of their magnitudes. ``l2`` is scaled so that it overflows only when the norm does;
    ``sum``, ``abs_sum`` and ``m2`` of float64 values near the largest float may become infinite.

    Raises:
        InvalidValueError: The array holds no numbers.
    """
    values = np.asarray(array)
    if values.dtype.kind not in "biufc":
        raise InvalidValueError(f"statistics need an array of numbers but got dtype {values.dtype}")
    if values.dtype.kind == "c":
        values = magnitudes(values)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        flat = values.astype(np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    row = empty()
    row[_COUNT] = flat.size
    row[_NAN] = np.isnan(flat).sum()
    row[_POSINF] = np.isposinf(flat).sum()
    row[_NEGINF] = np.isneginf(flat).sum()
    if finite.size:
        absolute = np.abs(finite)
        largest = absolute.max()
        with np.errstate(over="ignore", invalid="ignore"):
            row[_ZERO] = (finite == 0).sum()
            row[_MIN], row[_MAX] = finite.min(), finite.max()
            row[_SUM], row[_ABS_SUM] = finite.sum(), absolute.sum()
            row[_M2] = np.square(finite - finite.mean()).sum()
            row[_L2] = _norm(absolute, largest)
    return row


def merge(a: ArrayLike, b: ArrayLike) -> Rows:
    """Rows of the elements of ``a`` and ``b`` together, float64[..., 11]; shapes broadcast.

    Counts, minima and maxima are exact; the rest is float64 arithmetic. ``m2`` follows Chan, Golub and LeVeque,
    "Updating formulae and a pairwise algorithm for computing sample variances" (1979), since differences of plain
    sums of squares lose it. Merging in the same order gives the same bits.
    """
    left, right = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    if left.shape[-1:] != (len(STATISTIC_FIELDS),):
        raise InvalidValueError(f"rows of statistics have {len(STATISTIC_FIELDS)} columns but got shape {left.shape}")
    merged = np.empty(left.shape)
    merged[..., _ADDED] = left[..., _ADDED] + right[..., _ADDED]
    merged[..., _MIN] = np.fmin(left[..., _MIN], right[..., _MIN])
    merged[..., _MAX] = np.fmax(left[..., _MAX], right[..., _MAX])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        merged[..., _L2] = np.hypot(left[..., _L2], right[..., _L2])
        n_left, n_right = finite_count(left), finite_count(right)
        gap = right[..., _SUM] / n_right - left[..., _SUM] / n_left
        between = gap * gap * (n_left * n_right / (n_left + n_right))
    # A side without a finite element has the mean 0/0, and contributes no difference of means.
    merged[..., _M2] = left[..., _M2] + right[..., _M2] + np.where((n_left > 0) & (n_right > 0), between, 0.0)
    return merged


def finite_count(rows: Rows) -> NDArray[np.float64]:
    """Number of finite elements."""
    return np.asarray(rows[..., _COUNT] - rows[..., _NAN] - rows[..., _POSINF] - rows[..., _NEGINF])


def _norm(absolute: NDArray[Any], largest: float) -> float:
    """Euclidean norm that neither overflows nor underflows where the result does not."""
    if largest == 0:
        return 0.0
    if 1e-140 < largest < 1e140:
        return float(np.sqrt(np.square(absolute).sum()))
    return float(largest * np.sqrt(np.square(absolute / largest).sum()))
