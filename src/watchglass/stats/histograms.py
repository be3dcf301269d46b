"""Sparse histograms of many tensors: how often each sign, binary exponent and leading mantissa bit occurs.

The key of a finite nonzero value ``v = sign * m * 2**e`` with ``1 <= m < 2`` is
``sign * (2 * (e + 1075) + (leading mantissa bit of m))``: keys order like values, and every float64 has one, subnormals
included. Zeros and non-finite values have no key: rows of statistics count them, exactly. Since every bin is the same
for every tensor, histograms merge exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError
from watchglass.records import HISTOGRAM_MANTISSA_BITS, STATISTIC_FIELDS, count
from watchglass.stats.rows import Rows, finite_count

_PARTS = 1 << HISTOGRAM_MANTISSA_BITS
#: Makes the key of the smallest subnormal float64 (2**-1074) positive.
_EXPONENT_BIAS = 1075
_ZERO, _MIN, _MAX = (STATISTIC_FIELDS.index(name) for name in ("zero", "min", "max"))


@dataclass(frozen=True, eq=False, slots=True)
class Histograms:
    """Histograms of n tensors, one after another.

    Attributes:
        seen: How many elements each examined, of all kinds, uint64[n]: the tensor's number of elements, fewer where
            it was sampled (then ``counts * count / seen`` is an unbiased estimate), 0 where there is no histogram.
        offsets: Where each begins in the next two, int64[n + 1].
        keys: Bins that occur, int16[total], ascending within each histogram.
        counts: How many elements fell into the bin, uint64[total], at least 1.
    """

    seen: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    keys: NDArray[np.int16]
    counts: NDArray[np.uint64]

    @classmethod
    def none(cls, n: int) -> Histograms:
        """No histogram for each of n tensors, the neutral element of :func:`merge_histograms`."""
        return cls(np.zeros(n, np.uint64), np.zeros(n + 1, np.int64), np.zeros(0, np.int16), np.zeros(0, np.uint64))

    @classmethod
    def concatenate(cls, parts: Sequence[Histograms]) -> Histograms:
        """All of them, in this order."""
        if not parts:
            return cls.none(0)
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(
            np.concatenate([part.seen for part in parts]),
            _offsets(sizes),
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.seen)

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return self.seen.nbytes + self.offsets.nbytes + self.keys.nbytes + self.counts.nbytes

    def row(self, index: int) -> tuple[NDArray[np.int16], NDArray[np.uint64]]:
        """Keys and counts of one tensor."""
        begin, end = self.offsets[index], self.offsets[index + 1]
        return self.keys[begin:end], self.counts[begin:end]

    def take(self, rows: ArrayLike) -> Histograms:
        """The histograms of the given rows, indices int[k] or a mask bool[n], in that order."""
        index = np.arange(len(self))[np.asarray(rows) if np.size(rows) else np.zeros(0, np.int64)]
        sizes = np.diff(self.offsets)[index]
        offsets = _offsets(sizes)
        # Where every entry of the result comes from: its place in its own row, counted from that row's old beginning.
        entries = np.arange(offsets[-1]) + np.repeat(self.offsets[index] - offsets[:-1], sizes)
        return Histograms(self.seen[index], offsets, self.keys[entries], self.counts[entries])

    def owners(self) -> NDArray[np.int64]:
        """The row that each entry of ``keys`` belongs to, int64[total]."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


def keys_of(values: ArrayLike) -> NDArray[np.int16]:
    """The key of each finite nonzero number, int16[...]."""
    fractions, exponents = np.frexp(np.asarray(values, np.float64))  # 0.5 <= |fraction| < 1
    magnitudes = np.abs(fractions)
    keys = _PARTS * (exponents.astype(np.int64) - 1 + _EXPONENT_BIAS)
    keys += np.floor((2 * magnitudes - 1) * _PARTS).astype(np.int64)
    return np.asarray(np.where(fractions < 0, -keys, keys), np.int16)


def edges(keys: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and greatest magnitude of each bin as values, ``(low, high)`` with ``low < high``, float64[...] each.

    The edge further from zero belongs to the next bin. Above the largest float64 it is the largest float64.
    """
    signed = np.asarray(keys, np.int64)
    magnitudes = np.abs(signed)
    exponents, parts = magnitudes // _PARTS - _EXPONENT_BIAS, magnitudes % _PARTS
    with np.errstate(over="ignore", under="ignore"):
        inner = np.ldexp(1 + parts / _PARTS, exponents)
        outer = np.minimum(np.ldexp(1 + (parts + 1) / _PARTS, exponents), np.finfo(np.float64).max)
    negative = signed < 0
    return np.where(negative, -outer, inner), np.where(negative, -inner, outer)


def histograms_of(arrays: Sequence[NDArray[np.float64]]) -> Histograms:
    """Unsampled histograms of arrays of float64 (any dtype that converts to it exactly): the reference."""
    rows = []
    for array in arrays:
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
            values = np.asarray(array, np.float64).ravel()
        rows.append(np.unique(keys_of(values[np.isfinite(values) & (values != 0)]), return_counts=True))
    return Histograms(
        np.array([np.size(array) for array in arrays], np.uint64),
        _offsets(np.array([len(keys) for keys, _ in rows], np.int64)),
        np.concatenate([keys for keys, _ in rows] or [np.zeros(0, np.int16)]),
        np.concatenate([counts for _, counts in rows] or [np.zeros(0, np.int64)]).astype(np.uint64),
    )


def merge_histograms(a: Histograms, b: Histograms) -> Histograms:
    """The histogram of the elements of both, row by row; exact, in any order.

    Where the two were sampled at different rates, the result weighs elements by what was examined.

    Raises:
        InvalidValueError: They differ in length.
    """
    if len(a) != len(b):
        raise InvalidValueError(f"histograms are merged row by row but there are {len(a)} and {len(b)}")
    owners = np.concatenate([a.owners(), b.owners()])
    keys = np.concatenate([a.keys, b.keys])
    counts = np.concatenate([a.counts, b.counts])
    order = np.lexsort((keys, owners))
    owners, keys, counts = owners[order], keys[order], counts[order]
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
    starts = np.flatnonzero(first)
    merged = np.add.reduceat(counts, starts) if len(starts) else counts
    sizes = np.bincount(owners[starts], minlength=len(a))
    return Histograms(a.seen + b.seen, _offsets(sizes), keys[starts], merged)


def quantiles(histograms: Histograms, rows: Rows, q: ArrayLike) -> NDArray[np.float64]:
    """Quantiles of the finite elements of each tensor, float64[n, len(q)]; NaN where there is no histogram.

    Like ``numpy.quantile``, between the two elements around ``q * (finite elements - 1)``; each of the two is placed
    within its bin, as if the elements of a bin were spread evenly. Zeros are counted in their place. The error of an
    element is therefore less than the width of its bin, so it is right within a factor of 1.5. Zeros, the minimum and
    the maximum are exact, and no quantile is outside them. A sampled histogram adds the error of the sample: with
    16,384 independent elements about 0.004 in q around the median.

    Args:
        histograms: Of n tensors.
        rows: Their rows of statistics, float64[n, 11]; gives the zeros, minima and maxima.
        q: Quantiles wanted, 0 to 1.

    Raises:
        InvalidValueError: A quantile is not from 0 to 1, or the lengths differ.
    """
    wanted = np.atleast_1d(np.asarray(q, np.float64))
    if not ((wanted >= 0) & (wanted <= 1)).all():
        raise InvalidValueError(f"quantiles must be from 0 to 1 but got {wanted.tolist()}")
    if len(histograms) != len(rows):
        raise InvalidValueError(
            f"{count(len(histograms), 'histogram')} and {count(len(rows), 'row')} of statistics do not match"
        )
    finite, zeros = finite_count(rows), rows[:, _ZERO]
    keys, weights, ends = _with_zeros(histograms, finite - zeros, zeros)
    # A sample may miss the others where most are zero; where it has no bin and most are not, it saw nothing finite.
    mostly_zero = (histograms.seen > 0) & (2 * zeros > finite)
    known = (finite > 0) & ((finite == zeros) | mostly_zero | (np.diff(histograms.offsets) > 0))
    total = np.cumsum(weights)
    before = np.concatenate([[0.0], total])[np.concatenate([[0], ends[:-1]])]
    last = np.maximum(finite - 1, 0)[:, None]
    rank = wanted * last
    lower = np.floor(rank)
    low, high = edges(keys)
    low[keys == 0] = high[keys == 0] = 0.0

    def element(order: NDArray[np.float64]) -> NDArray[np.float64]:
        """The estimate of the element with this place in its row, counted from 0."""
        place = before[:, None] + order + 0.5
        entry = np.minimum(np.searchsorted(total, place, side="right"), ends[:, None] - 1)
        within = np.clip((place - (total[entry] - weights[entry])) / weights[entry], 0.0, 1.0)
        inside = low[entry] + (high[entry] - low[entry]) * within
        return np.where(order <= 0, rows[:, [_MIN]], np.where(order >= last, rows[:, [_MAX]], inside))

    result = np.full((len(rows), len(wanted)), np.nan)
    if known.any():
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            a = element(lower)
            b = element(np.minimum(lower + 1, last))
            part = rank - lower
            between = np.where(np.isfinite(b - a), a + (b - a) * part, a * (1 - part) + b * part)
            result = np.where(known[:, None], np.clip(between, rows[:, [_MIN]], rows[:, [_MAX]]), np.nan)
    return result


def _with_zeros(
    histograms: Histograms, nonzero: NDArray[np.float64], zeros: NDArray[np.float64]
) -> tuple[NDArray[np.int16], NDArray[np.float64], NDArray[np.int64]]:
    """Entries of all rows with the zeros of each as key 0: keys, weights, and the end of each row."""
    n = len(histograms)
    owners = histograms.owners()
    counted = np.bincount(owners, histograms.counts.astype(np.float64), minlength=n)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = histograms.counts * (nonzero / counted)[owners]
    owners = np.concatenate([owners, np.arange(n)])
    keys = np.concatenate([histograms.keys, np.zeros(n, np.int16)])
    weights = np.concatenate([weights, zeros])
    order = np.lexsort((keys, owners))
    return keys[order], weights[order], np.cumsum(np.diff(histograms.offsets) + 1)


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
