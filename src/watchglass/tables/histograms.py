"""Histograms as readers see them: of many rows, decoded on demand; of one tensor, with its edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.records import count
from watchglass.stats import Histograms, column, edges, quantiles


class LazyHistograms:
    """Histograms of n rows, decoded when first needed: that takes longer than all else, and few readers need them.

    Args:
        load: Returns the histograms.
    """

    def __init__(self, load: Callable[[], Histograms]) -> None:
        self._load: Callable[[], Histograms] | None = load
        self._found: Histograms | None = None

    @classmethod
    def concatenate(cls, parts: Sequence[tuple[LazyHistograms | None, int]]) -> LazyHistograms:
        """All of them in this order; each with its number of rows, None for rows without."""
        return cls(lambda: Histograms.concatenate([part.get() if part else Histograms.none(n) for part, n in parts]))

    def get(self) -> Histograms:
        """The histograms themselves."""
        load = self._load  # of two threads both may load it
        if self._found is None and load is not None:
            self._found, self._load = load(), None
        assert self._found is not None
        return self._found

    def take(self, rows: NDArray[Any]) -> LazyHistograms:
        """Some of the rows, by index or mask."""
        return LazyHistograms(lambda: self.get().take(rows))


@dataclass(frozen=True, eq=False)
class Histogram:
    """How the elements of one tensor were spread at one step.

    Bins are halves of powers of two, of either sign; zeros and non-finite elements are in none of them.
    """

    low: NDArray[np.float64]  #: Lower edge of each bin that holds something, float64[bins], ascending.
    high: NDArray[np.float64]  #: Upper edges.
    counts: NDArray[np.uint64]  #: Elements in each bin, uint64[bins]; of the elements that ``seen`` counts.
    zero: int  #: How many elements of the whole tensor are zero.
    nonfinite: int  #: How many are NaN or infinite.
    count: int  #: How many elements the tensor has.
    seen: int  #: Number of elements in the histogram; fewer than ``count`` if they are a sample.
    _bins: Histograms
    _row: NDArray[np.float64]

    @classmethod
    def of(cls, bins: Histograms, row: NDArray[np.float64]) -> Histogram:
        """The only one of ``bins``, with the tensor's row of statistics, float64[11]."""
        low, high = edges(bins.keys)
        zero, nonfinite, count = (int(column(row, name)) for name in ("zero", "nonfinite", "count"))
        return cls(low, high, bins.counts, zero, nonfinite, count, int(bins.seen[0]), bins, row)

    def quantile(self, q: ArrayLike) -> NDArray[np.float64]:
        """Quantiles (0 to 1) of the finite elements, float64 of the shape of ``q``; right within a factor of 1.5.

        Raises:
            InvalidValueError: A quantile is not from 0 to 1.
        """
        wanted = np.asarray(q, np.float64)
        return np.reshape(quantiles(self._bins, self._row[None], wanted.ravel())[0], wanted.shape)

    def __repr__(self) -> str:
        sampled = f", {self.seen} looked at" if self.seen < self.count else ""
        return f"Histogram({count(self.count, 'element')} in {count(len(self.low), 'bin')}, {self.zero} zero{sampled})"
