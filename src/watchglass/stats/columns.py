"""Columns of rows of statistics by name, stored and derived, and the reductions that need the elements themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import STATISTIC_FIELDS, Reduction
from watchglass.stats.elements import magnitudes
from watchglass.stats.rows import Rows, finite_count

Column = NDArray[np.float64]

_INDEX = {name: index for index, name in enumerate(STATISTIC_FIELDS)}


def column(rows: Rows, name: str) -> Column:
    """A stored or derived column by name, float64[...].

    Stored are the names of :data:`~watchglass.records.STATISTIC_FIELDS`. Derived, over the finite elements and NaN
    where there is none, are ``mean``, ``variance`` (biased: m2 / n), ``std``, ``rms``, ``zero_ratio`` (0..1); of
    absolute values ``abs_mean``, ``abs_max``, ``abs_variance``, ``abs_std``; ``nonfinite``, a count; and other names
    of stored ones: ``l1``, ``abs_l1`` (abs_sum) and ``abs_l2`` (l2).

    ``abs_variance`` is ``variance - (abs_mean**2 - mean**2)``, never below 0. Where all elements have one sign that is
    as exact as the variance; where they have both, digits cancel, and its error is up to about 1e-15 of ``rms**2``.

    Raises:
        InvalidValueError: There is no such column.
    """
    if name in _INDEX:
        return np.asarray(rows[..., _INDEX[name]])
    if name not in _DERIVATIONS:
        known = ", ".join((*STATISTIC_FIELDS, *DERIVED))
        raise InvalidValueError(f"a reduction must be one of {known} but got {name!r}")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(_DERIVATIONS[name](rows))


def exact_reduction(array: ArrayLike, reduction: Reduction) -> float:
    """One number over the finite elements of an array (of complex numbers: their magnitudes); NaN where there is none.

    Median of an even number of elements is the mean of the two in the middle. The product is of float64 and overflows
    to an infinity.
    """
    values = np.asarray(array)
    if values.dtype.kind == "c":
        values = magnitudes(values)
    finite = values.astype(np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return float("nan")
    with np.errstate(over="ignore", under="ignore"):
        return float(_REDUCTIONS[reduction](finite))


_REDUCTIONS: dict[Reduction, Callable[[Column], np.floating]] = {
    Reduction.MEDIAN: np.median,
    Reduction.PROD: np.prod,
    Reduction.ABS_MEDIAN: lambda values: np.median(np.abs(values)),
    Reduction.ABS_MIN: lambda values: np.abs(values).min(),
}


def _mean(rows: Rows, name: str) -> Column:
    return np.asarray(rows[..., _INDEX[name]] / finite_count(rows))


def _abs_max(rows: Rows) -> Column:
    return np.maximum(np.abs(rows[..., _INDEX["min"]]), np.abs(rows[..., _INDEX["max"]]))


def _abs_variance(rows: Rows) -> Column:
    mean, abs_mean = np.abs(_mean(rows, "sum")), _mean(rows, "abs_sum")
    return np.maximum(_mean(rows, "m2") - (abs_mean - mean) * (abs_mean + mean), 0.0)


_DERIVATIONS: dict[str, Callable[[Rows], Column]] = {
    "mean": lambda rows: _mean(rows, "sum"),
    "abs_mean": lambda rows: _mean(rows, "abs_sum"),
    "variance": lambda rows: _mean(rows, "m2"),
    "std": lambda rows: np.sqrt(_mean(rows, "m2")),
    "rms": lambda rows: np.asarray(rows[..., _INDEX["l2"]] / np.sqrt(finite_count(rows))),
    "zero_ratio": lambda rows: _mean(rows, "zero"),
    "nonfinite": lambda rows: np.asarray(rows[..., _INDEX["count"]] - finite_count(rows)),
    "l1": lambda rows: rows[..., _INDEX["abs_sum"]],
    "abs_l1": lambda rows: rows[..., _INDEX["abs_sum"]],
    "abs_l2": lambda rows: rows[..., _INDEX["l2"]],
    "abs_max": _abs_max,
    "abs_variance": _abs_variance,
    "abs_std": lambda rows: np.sqrt(_abs_variance(rows)),
}

#: Columns that :func:`column` derives.
DERIVED = tuple(_DERIVATIONS)
