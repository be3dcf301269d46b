"""What a picture shows at one place of its horizontal axis: for a cursor."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from watchglass.view.pictures.records import Axis, Bands, Bars, Grid, Lines, Numbers, Picture, Story, Strips
from watchglass.view.pictures.ticks import UNITS
from watchglass.view.text import number

#: What is shown by name.
Values = list[tuple[str, str]]
#: Most values of one picture.
_MOST = 40


def drawings_of(picture: Picture) -> tuple[Picture, ...]:
    """The pictures that are drawn, from the top: the lanes of a story, else the picture itself."""
    return picture.lanes if isinstance(picture, Story) else (picture,)


def nearest(picture: Picture, at: float, move: int = 0) -> float:
    """The place with numbers that is nearest, or so many further.

    Args:
        picture: One of :func:`drawings_of`.
        at: A place on its horizontal axis.
        move: How many further places to the right, to the left if negative.
    """
    places = _places(picture)
    if not len(places):
        return at + move
    return float(places[int(np.clip(_at(places, at) + move, 0, len(places) - 1))])


def _places(picture: Picture) -> Numbers:
    if isinstance(picture, Lines):
        found = [line.x for line in picture.lines] or [np.empty(0)]
        return np.unique(np.concatenate(found))
    if isinstance(picture, Bands):
        return picture.at
    if isinstance(picture, Grid):
        return picture.columns
    if isinstance(picture, Strips):
        return np.unique([end for row in picture.rows for piece in row.pieces for end in (piece.begin, piece.end)])
    return np.empty(0)


def _at(places: Numbers, at: float) -> int:
    """Index of the nearest of ascending places."""
    place = int(np.searchsorted(places, at))
    if place == len(places) or (place and at - places[place - 1] <= places[place] - at):
        place -= 1
    return place


@singledispatch
def values_at(picture: Picture, at: float) -> Values:
    """Names and numbers at a place; none for pictures without such an axis."""
    return []


@values_at.register
def _of_lines(picture: Lines, at: float) -> Values:
    found = []
    for line in picture.lines[:_MOST]:
        if not len(line.x) or (not line.dots and not line.x[0] <= at <= line.x[-1]):
            continue
        place = _at(line.x, at)
        text = _text(picture.y, float(line.y[place]))
        if line.low is not None and line.high is not None:
            text += f" ({_text(picture.y, float(line.low[place]))} to {_text(picture.y, float(line.high[place]))})"
        if line.dots:
            text += f" at {line.x[place]:,.10g}"
        found.append((line.name, text))
    return found


@values_at.register
def _of_bands(picture: Bands, at: float) -> Values:
    place = _at(picture.at, at)
    return [(band.name, _text(picture.y, float(band.values[place]))) for band in picture.bands]


@values_at.register
def _of_bars(picture: Bars, at: float) -> Values:
    place = int(np.clip(np.searchsorted(picture.edges, at, side="right") - 1, 0, len(picture.edges) - 2))
    low, high = picture.edges[place : place + 2].tolist()
    return [
        (f"{band.name}, {number(low)} to {number(high)}", number(float(band.values[place]))) for band in picture.bands
    ]


@values_at.register
def _of_grid(picture: Grid, at: float) -> Values:
    place = _at(picture.columns, at)
    return [
        (name, "not finite" if broken else number(float(cell)) if np.isfinite(cell) else "")
        for name, cell, broken in zip(picture.rows, picture.cells[:, place], picture.broken[:, place], strict=True)
    ]


@values_at.register
def _of_strips(picture: Strips, at: float) -> Values:
    return [(row.name, piece.text) for row in picture.rows for piece in row.pieces if piece.begin <= at <= piece.end][
        :_MOST
    ]


def _text(axis: Axis, value: float) -> str:
    if not np.isfinite(value):
        return "not finite"
    return (
        f"{100 * value:.4g} %" if axis.percent else f"{number(value)}{f' {axis.title}' if axis.title in UNITS else ''}"
    )
