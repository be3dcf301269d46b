"""Rows of statistics: the reference that every kernel is tested against, the exact merge, and derived columns.

A row is float64[11] with the columns of :data:`~watchglass.records.STATISTIC_FIELDS`; functions take any number of
rows, ``[..., 11]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import STATISTIC_FIELDS

Rows = NDArray[np.float64]

_INDEX = {name: index for index, name in enumerate(STATISTIC_FIELDS)}
_COUNT, _NAN, _POSINF, _NEGINF, _ZERO, _MIN, _MAX, _SUM, _ABS_SUM, _M2, _L2 = range(len(STATISTIC_FIELDS))
_ADDED = [_COUNT, _NAN, _POSINF, _NEGINF, _ZERO, _SUM, _ABS_SUM]


def empty(*shape: int) -> Rows:
    """Rows of no elements at all, the neutral element of :func:`merge`: float64[*shape, 11]."""
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
        values = np.abs(values)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        flat = values.astype(np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    row = empty()
    row[_COUNT] = flat.size
    row[_NAN] = np.isnan(flat).sum()
    row[_POSINF] = np.isposinf(flat).sum()
    row[_NEGINF] = np.isneginf(flat).sum()
    if finite.size:
        magnitudes = np.abs(finite)
        largest = magnitudes.max()
        with np.errstate(over="ignore", invalid="ignore"):
            row[_ZERO] = (finite == 0).sum()
            row[_MIN], row[_MAX] = finite.min(), finite.max()
            row[_SUM], row[_ABS_SUM] = finite.sum(), magnitudes.sum()
            row[_M2] = np.square(finite - finite.mean()).sum()
            row[_L2] = _norm(magnitudes, largest)
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
    # Where one side has no finite element its mean is 0/0, and there is nothing between the two.
    merged[..., _M2] = left[..., _M2] + right[..., _M2] + np.where((n_left > 0) & (n_right > 0), between, 0.0)
    return merged


def finite_count(rows: Rows) -> NDArray[np.float64]:
    """Number of finite elements."""
    return np.asarray(rows[..., _COUNT] - rows[..., _NAN] - rows[..., _POSINF] - rows[..., _NEGINF])


def column(rows: Rows, name: str) -> NDArray[np.float64]:
    """A stored or derived column by name, float64[...].

    Stored are the names of :data:`~watchglass.records.STATISTIC_FIELDS`. Derived, over the finite elements and NaN
    where there is none: ``mean``, ``abs_mean``, ``variance`` (biased: m2 / n), ``std``, ``rms``, ``zero_ratio``
    (0..1); and ``nonfinite``, a count.

    Raises:
        InvalidValueError: There is no such column.
    """
    if name in _INDEX:
        return np.asarray(rows[..., _INDEX[name]])
    if name == "nonfinite":
        return np.asarray(rows[..., _COUNT] - finite_count(rows))
    if name not in DERIVED:
        known = ", ".join((*STATISTIC_FIELDS, *DERIVED))
        raise InvalidValueError(f"a reduction must be one of {known} but got {name!r}")
    count = finite_count(rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        if name == "mean":
            return np.asarray(rows[..., _SUM] / count)
        if name == "abs_mean":
            return np.asarray(rows[..., _ABS_SUM] / count)
        if name == "zero_ratio":
            return np.asarray(rows[..., _ZERO] / count)
        if name == "rms":
            return np.asarray(rows[..., _L2] / np.sqrt(count))
        variance = rows[..., _M2] / count
        return np.asarray(variance if name == "variance" else np.sqrt(variance))


#: Columns that :func:`column` derives.
DERIVED = ("mean", "abs_mean", "variance", "std", "rms", "zero_ratio", "nonfinite")


def _norm(magnitudes: NDArray[Any], largest: float) -> float:
    """Euclidean norm that neither overflows nor underflows where the result does not."""
    if largest == 0:
        return 0.0
    if 1e-140 < largest < 1e140:
        return float(np.sqrt(np.square(magnitudes).sum()))
    return float(largest * np.sqrt(np.square(magnitudes / largest).sum()))
