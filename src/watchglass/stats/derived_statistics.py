"""Columns of statistics by name, stored and derived, and the reductions that need the elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import DERIVED_FIELDS, STATISTIC_FIELDS, Reduction
from watchglass.stats.elements import magnitudes
from watchglass.stats.rows import Rows

Column = NDArray[np.float64]


def column(rows: Rows, name: str, fields: Sequence[str] = STATISTIC_FIELDS) -> Column:
    """A stored or derived column by name, float64[...].

    Stored are the names of :data:`~watchglass.records.STATISTIC_FIELDS`. Derived, over the finite elements and NaN
    where there is none, are ``mean``, ``variance`` (biased: m2 / n), ``std``, ``rms``, ``zero_ratio`` (0..1); of
    absolute values ``abs_mean``, ``abs_max``, ``abs_variance``, ``abs_std``, and ``nonzero_abs_mean`` over those that
    are not zero; ``finite`` and ``nonfinite``, counts; and other names of stored ones: ``l1``, ``abs_l1`` (abs_sum) and
    ``abs_l2`` (l2).

    ``abs_variance`` is ``variance - (abs_mean**2 - mean**2)``, never below 0. Where all elements have one sign that is
    as exact as the variance; where they have both, digits cancel, and its error is up to about 1e-15 of ``rms**2``.

    Args:
        rows: Statistics, float64[..., len(fields)].
        name: The column.
        fields: What the last axis of ``rows`` holds; at least :func:`stored_fields` of the column.

    Raises:
        InvalidValueError: There is no such column.
    """
    if name in fields:
        return np.asarray(rows[..., fields.index(name)])
    return derived(name, lambda source: column(rows, source, fields))


def derived(name: str, of: Callable[[str], Column]) -> Column:
    """A derived column, computed from the columns that ``of`` returns by name.

    Raises:
        InvalidValueError: There is no such column.
    """
    if name not in _DERIVATIONS:
        known = ", ".join((*STATISTIC_FIELDS, *DERIVED_FIELDS))
        raise InvalidValueError(f"a reduction must be one of {known} but got {name!r}")
    sources, derive = _DERIVATIONS[name]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(derive(*map(of, sources)))


def stored_fields(names: Iterable[str]) -> tuple[str, ...]:
    """The stored columns from which these columns are computed, in their order; none for unknown names."""
    needed = {source for name in names for source in _stored(name)}
    return tuple(name for name in STATISTIC_FIELDS if name in needed)


def _stored(name: str) -> Iterator[str]:
    if name in STATISTIC_FIELDS:
        yield name
    for source in _DERIVATIONS.get(name, ((), None))[0]:
        yield from _stored(source)


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


def _abs_variance(mean: Column, abs_mean: Column, variance: Column) -> Column:
    mean = np.abs(mean)
    return np.maximum(variance - (abs_mean - mean) * (abs_mean + mean), 0.0)


#: Each with the columns that it is made of, and how.
_DERIVATIONS: dict[str, tuple[tuple[str, ...], Callable[..., Column]]] = {
    "finite": (("count", "nan", "posinf", "neginf"), lambda count, nan, posinf, neginf: count - nan - posinf - neginf),
    "nonfinite": (("count", "finite"), np.subtract),
    "mean": (("sum", "finite"), np.divide),
    "abs_mean": (("abs_sum", "finite"), np.divide),
    "variance": (("m2", "finite"), np.divide),
    "std": (("variance",), np.sqrt),
    "rms": (("l2", "finite"), lambda l2, finite: l2 / np.sqrt(finite)),
    "zero_ratio": (("zero", "finite"), np.divide),
    "nonzero_abs_mean": (("abs_sum", "finite", "zero"), lambda abs_sum, finite, zero: abs_sum / (finite - zero)),
    "l1": (("abs_sum",), np.asarray),
    "abs_l1": (("abs_sum",), np.asarray),
    "abs_l2": (("l2",), np.asarray),
    "abs_max": (("min", "max"), lambda low, high: np.maximum(np.abs(low), np.abs(high))),
    "abs_variance": (("mean", "abs_mean", "variance"), _abs_variance),
    "abs_std": (("abs_variance",), np.sqrt),
}
