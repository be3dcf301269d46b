"""The kinds of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        title: What it shows, with its unit: ``"training step"``, ``"ms"``.
        logarithmic: Whether it has a logarithmic scale; numbers that are not positive are not drawn.
        low, high: Its ends; None for those of the numbers.
        percent: Whether its numbers are shares, which ticks show in percent.
        whole: Whether only whole numbers have ticks.
    """

    title: str = ""
    logarithmic: bool = False
    low: float | None = None
    high: float | None = None
    percent: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line with a text, such as the first finding of a rule.

    Attributes:
        at: Its place on the horizontal axis.
        text: The text, plain.
        tone: ``"error"``, ``"warning"``, ``"info"``, or "" for a line of the picture itself.
    """

    at: float
    text: str
    tone: str = ""


@dataclass(frozen=True, eq=False)
class Line:
    """One series of a picture of lines.

    Attributes:
        name: Its name, plain text.
        x: Ascending numbers, float64[n].
        y: Numbers, float64[n]; those that are not finite are gaps.
        colour: A colour of :mod:`watchglass.view.pictures.colours`, as ``"#rrggbb"``.
        dots: Whether each number is a dot: of few numbers, such as evaluations.
        dashed: Whether it is dashed, beside another line of its colour.
        faint: Whether it is behind its smoothed course, which has its colour too: it is in no legend.
        low, high: Of thinned series, the extremes around each number, float64[n]; None for those that hold all numbers.
        missing: Places of numbers that are not finite, float64[m].
    """

    name: str
    x: Numbers
    y: Numbers
    colour: str
    dots: bool = False
    dashed: bool = False
    faint: bool = False
    low: Numbers | None = None
    high: Numbers | None = None
    missing: Numbers | None = None


@dataclass(frozen=True)
class Lines:
    """Lines over a common axis.

    Attributes:
        title: Its title, plain text.
        x, y: The axes.
        lines: The lines.
        marks: Vertical lines.
        zone: A usual range of y, which is shaded; None for none.
        ordered: Whether the lines are layers in order, whose colours say which: then two ends replace a legend.
    """

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    zone: tuple[float, float] | None = None
    ordered: bool = False


@dataclass(frozen=True, eq=False)
class Band:
    """One part of a sum: ``name``, ``colour`` and its numbers, float64[n], not negative."""

    name: str
    values: Numbers
    colour: str


@dataclass(frozen=True, eq=False)
class Bands:
    """Parts of a sum, stacked, the first at the bottom.

    Attributes:
        title: Its title.
        x, y: The axes.
        at: Places on the horizontal axis, float64[n], ascending.
        bands: The parts.
        marks: Vertical lines.
    """

    title: str
    x: Axis
    y: Axis
    at: Numbers
    bands: tuple[Band, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, eq=False)
class Bars:
    """Counts between edges, one on the other, such as distributions of two modes.

    Attributes:
        title: Its title.
        x, y: The axes.
        edges: Edges of the bars, float64[n + 1], ascending.
        bands: The counts of each series, n numbers.
        marks: Vertical lines.
    """

    title: str
    x: Axis
    y: Axis
    edges: Numbers
    bands: tuple[Band, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class GridBox:
    """A part of a row of a grid that is outlined: ``row``, from ``begin`` to ``end``, why, and its ``tone``."""

    row: int
    begin: float
    end: float
    text: str
    tone: str = ""


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows of cells whose colour is a number.

    Attributes:
        title: Its title.
        x: The horizontal axis, along the columns.
        rows: Names of the rows, plain text, from the top.
        columns: The place of each column, float64[n], ascending.
        cells: float32[rows, n]; NaN where there is none.
        low, high: Numbers of the darkest and the brightest colour.
        scale: What the numbers are, such as ``"log10 of the norm"``.
        broken: Whether a cell stands for a number that is not finite, bool[rows, n].
        boxes: Parts that are outlined.
        tree: Whether names of rows are paths in a tree: what a row has in common with the one above is drawn once.
    """

    title: str
    x: Axis
    rows: tuple[str, ...]
    columns: Numbers
    cells: NDArray[np.float32]
    low: float
    high: float
    scale: str
    broken: NDArray[np.bool_]
    boxes: tuple[GridBox, ...] = ()
    tree: bool = False


@dataclass(frozen=True, eq=False)
class PointGroup:
    """Points of one kind: ``name``, ``x`` and ``y``, float64[n] each, and ``colour``."""

    name: str
    x: Numbers
    y: Numbers
    colour: str


@dataclass(frozen=True, eq=False)
class Points:
    """Points in a plane, such as examples in a latent space.

    Attributes:
        title: Its title.
        x, y: The axes.
        groups: The points.
    """

    title: str
    x: Axis
    y: Axis
    groups: tuple[PointGroup, ...]


@dataclass(frozen=True, eq=False)
class Image:
    """Pixels, uint8[height, width, 3], which are drawn without smoothing."""

    title: str
    pixels: NDArray[np.uint8]


@dataclass(frozen=True)
class Piece:
    """A part of a strip.

    Attributes:
        begin, end: Its ends on the horizontal axis; equal for a moment.
        text: What it is, plain text.
        tone: ``"error"``, ``"warning"``, ``"info"``, or "" for what is neither good nor bad.
    """

    begin: float
    end: float
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Strip:
    """One row of strips: ``name`` and its pieces, in order."""

    name: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Strips:
    """What was going on when, one row below the other.

    Attributes:
        title: Its title.
        x: The horizontal axis, with both ends.
        rows: The rows.
    """

    title: str
    x: Axis
    rows: tuple[Strip, ...]


@dataclass(frozen=True)
class Story:
    """Lanes with one horizontal axis.

    Attributes:
        title: Its title.
        x: The axis, with both ends.
        lanes: The lanes from the top; their own titles name them.
    """

    title: str
    x: Axis
    lanes: tuple[Lines | Bands | Strips, ...]


Picture: TypeAlias = "Lines | Bands | Bars | Grid | Points | Image | Strips | Story"


def limits(axis: Axis, *numbers: NDArray[Any]) -> tuple[float, float]:
    """The ends of an axis, by its own numbers and those that it must show; distinct, with a little room."""
    known = [each[np.isfinite(each) & (each > 0 if axis.logarithmic else True)] for each in numbers]
    known = [each for each in known if len(each)]
    least = min((float(each.min()) for each in known), default=1.0 if axis.logarithmic else 0.0)
    most = max((float(each.max()) for each in known), default=1.0)
    low, high = least if axis.low is None else axis.low, most if axis.high is None else axis.high
    if axis.logarithmic:
        room = (high / low) ** 0.04 if high > low else 2.0
        return (low if axis.low is not None else low / room), (high if axis.high is not None else high * room)
    room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return (low if axis.low is not None else low - room), (high if axis.high is not None else high + room)
