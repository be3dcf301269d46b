"""The numbers of a picture as a table, for readers who cannot see it, and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from watchglass.view.pictures.records import (
    Band,
    Bands,
    Bars,
    Grid,
    Image,
    Lines,
    Numbers,
    Picture,
    Points,
    Story,
    Strips,
)
from watchglass.view.pictures.tables import TextTable, plain
from watchglass.view.text import number

#: Rows of a table of sums.
_ROWS = 24
#: Rows of a table of pieces.
_MOST_PIECES = 200
_COURSE = ("first", "last", "least", "greatest")


@singledispatch
def numbers_of(picture: Picture) -> TextTable:
    """The numbers that a picture shows: of each line or row its ends and extremes, of sums some of the places."""
    raise TypeError(f"no table of {type(picture).__name__}")


@numbers_of.register
def _of_lines(picture: Lines) -> TextTable:
    head = ("line", f"first {picture.x.title}", f"last {picture.x.title}", *_COURSE)
    return TextTable(head, [(line.name, *_course(line.x, line.y, line.low, line.high)) for line in picture.lines])


@numbers_of.register
def _of_grid(picture: Grid) -> TextTable:
    head = ("row", f"first {picture.x.title}", f"last {picture.x.title}", *_COURSE)
    rows = [
        (name, *_course(picture.columns, cells.astype(np.float64)))
        for name, cells in zip(picture.rows, picture.cells, strict=True)
    ]
    return TextTable(head, rows)


def _course(x: Numbers, y: Numbers, low: Numbers | None = None, high: Numbers | None = None) -> Iterable[str]:
    known = np.isfinite(y)
    if not known.any():
        return ("",) * 6
    at, values = x[known], y[known]
    least = np.nanmin(y if low is None else np.fmin(y, low))
    most = np.nanmax(y if high is None else np.fmax(y, high))
    ends = (f"{end:,.10g}" for end in (at[0], at[-1]))
    return (*ends, *(number(float(each)) for each in (values[0], values[-1], least, most)))


@numbers_of.register
def _of_bands(picture: Bands) -> TextTable:
    return _columns(picture.x.title, picture.at, picture.bands)


@numbers_of.register
def _of_bars(picture: Bars) -> TextTable:
    return _columns(f"from {picture.x.title}", picture.edges[:-1], picture.bands)


def _columns(title: str, at: NDArray[np.float64], bands: Sequence[Band]) -> TextTable:
    places = np.unique(np.linspace(0, len(at) - 1, _ROWS).round().astype(int))
    rows = [(f"{at[place]:,.4g}", *(number(float(band.values[place])) for band in bands)) for place in places.tolist()]
    return TextTable((title, *(band.name for band in bands)), rows)


@numbers_of.register
def _of_strips(picture: Strips) -> TextTable:
    rows = [
        (row.name, f"{piece.begin:,.10g}", f"{piece.end:,.10g}", piece.text)
        for row in picture.rows
        for piece in row.pieces
    ]
    return TextTable(("row", f"first {picture.x.title}", f"last {picture.x.title}", "what"), rows[:_MOST_PIECES])


@numbers_of.register
def _of_story(picture: Story) -> TextTable:
    head = ("lane", "what", f"first {picture.x.title}", f"last {picture.x.title}", "numbers")
    rows = []
    for lane in picture.lanes:
        if isinstance(lane, Bands):
            ends = (f"{lane.at[0]:,.10g}", f"{lane.at[-1]:,.10g}")
            means = [(band.name, *ends, f"mean {number(float(band.values.mean()))}") for band in lane.bands]
            rows += [(lane.title, *each) for each in means]
            continue
        table = numbers_of(lane)
        for what, first, last, *rest in table.rows:
            said = [
                f"{name} {text}" if name in _COURSE else text for name, text in zip(table.head[3:], rest, strict=True)
            ]
            rows.append((lane.title, plain(what), plain(first), plain(last), ", ".join(map(plain, said))))
    return TextTable(head, rows)


@numbers_of.register
def _of_points(picture: Points) -> TextTable:
    head = ("points", "number", f"mean {picture.x.title or 'x'}", f"mean {picture.y.title or 'y'}")
    rows = []
    for group in picture.groups:
        known = np.isfinite(group.x) & np.isfinite(group.y)
        means = (number(float(each[known].mean())) if known.any() else "" for each in (group.x, group.y))
        rows.append((group.name, f"{int(known.sum()):,}", *means))
    return TextTable(head, rows)


@numbers_of.register
def _of_image(picture: Image) -> TextTable:
    height, width = picture.pixels.shape[:2]
    return TextTable(("height", "width"), [(f"{height:,} pixels", f"{width:,} pixels")])
