"""The native kernel in NumPy: used where the library is missing, and as a reference for its tests.

Counts, minima, maxima and histograms are the same bits; sums differ in their rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchglass.stats import elements
from watchglass.stats.histograms import Histograms, histograms_of
from watchglass.stats.rows import Rows, empty, of_array


def summaries(
    pointers: Sequence[int], counts: Sequence[int], codes: Sequence[int], *, before: Sequence[int] | None = None,
    scale: float | None = None, histograms: bool = True, seed: int = 0,
) -> tuple[Rows, Histograms | None]:  # fmt: skip
    """Rows and histograms as :func:`watchglass.stats.native.summaries` gives them."""
    rows = empty(len(pointers))
    parts = []
    for index, (pointer, count, code) in enumerate(zip(pointers, counts, codes, strict=True)):
        older = None if before is None else elements.read(before[index], count, code)
        values = elements.numbers(elements.read(pointer, count, code), code, older, scale)
        rows[index] = of_array(values)
        if histograms:
            sampled = elements.sample(count, seed)
            parts.append(histograms_of([values if sampled is None else values[sampled]]))
    return rows, Histograms.concatenate(parts) if histograms else None
