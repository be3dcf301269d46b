"""A line in characters: braille cells have two columns of four dots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: The dots of a cell, from the lowest to the highest, of its left and its right column.
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
_EMPTY = 0x2800
#: Shares of the values that may lie outside the picture, at its top and at its bottom.
_OUTSIDE = 0.02
#: Ratio of the limits beyond which the axis is logarithmic.
_LOGARITHMIC = 1e3


@dataclass(frozen=True)
class BrailleLine:
    """A series as lines of text.

    Attributes:
        lines: The lines, the highest first.
        low: The lower limit of the axis; NaN without a finite value.
        high: The upper limit.
        logarithmic: Whether the axis is logarithmic, as that of positive values over more than three powers of ten is.
    """

    lines: list[str]
    low: float
    high: float
    logarithmic: bool = False


def braille_line(values: NDArray[np.float64], width: int, height: int) -> BrailleLine:
    """A series as lines of text. Each column of dots shows the range of equally many values.

    What lies far outside the others is at the edge. Where nothing is finite, the lowest line has a cross.

    Args:
        values: float64[n].
        width: Width in characters.
        height: Height in lines.
    """
    cells = np.full((height, width), _EMPTY)
    finite = values[np.isfinite(values)]
    if not len(finite) or width < 1 or height < 1:
        cells[-1:] = ord("x") if len(values) else _EMPTY
        return BrailleLine(_text(cells), np.nan, np.nan)
    low, high = (float(each) for each in np.quantile(finite, [_OUTSIDE, 1 - _OUTSIDE]))
    if len(finite) < 1 / _OUTSIDE:
        low, high = float(finite.min()), float(finite.max())
    logarithmic = bool((finite > 0).all()) and high > _LOGARITHMIC * low
    shown = np.log10(values, where=np.isfinite(values), out=np.full(len(values), np.nan)) if logarithmic else values
    below, above = (float(np.log10(low)), float(np.log10(high))) if logarithmic else (low, high)
    dots, columns = 4 * height, min(2 * width, len(values))
    scale = (dots - 1) / (above - below) if above > below else 0.0
    broken = set()
    for column, part in enumerate(np.array_split(shown, columns)):
        known = part[np.isfinite(part)]
        if not len(known):
            broken.add(column // 2)
            continue
        ends = np.clip((np.array([known.min(), known.max()]) - below) * scale, 0, dots - 1)
        for dot in range(round(ends[0]), round(ends[1]) + 1):
            cells[height - 1 - dot // 4, column // 2] |= _DOTS[column % 2][dot % 4]
    for place in broken:
        if (cells[:, place] == _EMPTY).all():
            cells[-1, place] = ord("x")
    return BrailleLine(_text(cells), low, high, logarithmic)


def _text(cells: NDArray[np.int64]) -> list[str]:
    return ["".join(map(chr, row)) for row in cells.tolist()]
