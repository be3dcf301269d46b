"""Pictures as SVG: texts keep their size while the numbers fill whatever width there is."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from watchglass.view.pictures.colours import scale
from watchglass.view.pictures.png import grid_png, image_png
from watchglass.view.pictures.records import (
    Axis,
    Bands,
    Bars,
    Grid,
    GridBox,
    Image,
    Line,
    Lines,
    Mark,
    Numbers,
    Picture,
    Points,
    Strips,
    limits,
)
from watchglass.view.pictures.ticks import ticks
from watchglass.view.text import escaped

#: The coordinates in which numbers are drawn; they are stretched to the space of the picture.
_WIDTH, _HEIGHT = 2000, 1000
#: Heights of pictures, and of a row of a grid, in pixels of a page.
HEIGHT, _ROW = 240, 17
#: Most ticks of a horizontal axis, and of a vertical one.
_ACROSS, _UP = 7, 6
#: Share of the width from which on the text of a mark stands left of it, and rows of such texts.
_NEAR_EDGE, _MARK_ROWS = 0.8, 9
#: Share of the width that a letter of such a text takes at most, on a page of 390 pixels.
_LETTER = 0.026
#: Characters of the name of a row of a grid, and most of one that never is a part of its path alone.
_LONGEST, _WHOLE = 34, 20


class _Frame:
    """Where numbers are: the ends of both axes."""

    def __init__(self, x: Axis, y: Axis, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.x, self.y, self.across, self.up = x, y, across, up

    def left(self, numbers: Numbers) -> Numbers:
        """Shares of the width."""
        return _shares(self.x, self.across, numbers)

    def top(self, numbers: Numbers) -> Numbers:
        """Shares of the height, from the top; those beyond an end lie on it."""
        return np.clip(1.0 - _shares(self.y, self.up, numbers), 0.0, 1.0)

    def points(self, x: Numbers, y: Numbers) -> NDArray[np.int64]:
        """Coordinates int64[n, 2]; those of numbers that are not finite mean nothing."""
        places = np.stack([self.left(x) * _WIDTH, self.top(y) * _HEIGHT], axis=1)
        return np.rint(np.nan_to_num(places)).astype(np.int64)


def _shares(axis: Axis, ends: tuple[float, float], numbers: Numbers) -> Numbers:
    low, high = ends
    if axis.logarithmic:
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers, low, high = np.log10(numbers), float(np.log10(low)), float(np.log10(high))
    return (np.asarray(numbers, np.float64) - low) / (high - low)


def svg(picture: Picture, height: int = HEIGHT) -> str:
    """The picture without its title and legend, as an element that fills the width of its parent.

    Texts outside of the frame are drawn over its margins.

    Args:
        picture: The picture.
        height: Its height in pixels; the rows of grids and strips have their own.
    """
    if isinstance(picture, Grid | Strips):
        height = max(100 if isinstance(picture, Grid) else 0, _ROW * len(picture.rows))
    return (
        f'<svg class="axes" width="100%" height="{height}" overflow="visible" role="img" '
        f'aria-label="{escaped(picture.title)}">{_drawn(picture)}</svg>'
    )


@singledispatch
def _drawn(picture: Picture) -> str:
    raise TypeError(f"no way to draw {type(picture).__name__}")


@_drawn.register
def _lines(picture: Lines) -> str:
    values = [each for line in picture.lines for each in (line.y, line.low, line.high) if each is not None]
    zone = () if picture.zone is None else (np.array(picture.zone),)
    up = limits(picture.y, *values, *zone)
    frame = _Frame(picture.x, picture.y, _across(picture.x, *(line.x for line in picture.lines)), up)
    parts = [_line(frame, line) for line in picture.lines]
    if picture.zone is not None:
        above, below = (int(each) for each in frame.top(np.array(picture.zone[::-1])) * _HEIGHT)
        parts.insert(0, f'<path class="zone" d="M0 {above}H{_WIDTH}V{below}H0Z"/>')
    return _framed(frame, parts, picture.marks)


def _line(frame: _Frame, line: Line) -> str:
    shown = frame.points(line.x, line.y)
    known = np.isfinite(line.y) & ((line.y > 0) if frame.y.logarithmic else True)
    parts = []
    if line.low is not None and line.high is not None:
        for part in _stretches(np.isfinite(line.low) & np.isfinite(line.high)):
            above, below = frame.points(line.x[part], line.high[part]), frame.points(line.x[part], line.low[part])
            parts.append(f'<path class="between" fill="{line.colour}" d="{_path(np.vstack([above, below[::-1]]))}Z"/>')
    course = "".join(_path(shown[part]) for part in _stretches(known))
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    if course:
        parts.append(f'<path class="line" stroke="{line.colour}"{dashes} d="{course}"/>')
    if line.dots:
        parts.append(f'<path class="dots" stroke="{line.colour}" d="{_dots(shown[known])}"/>')
    if line.missing is not None and len(line.missing):
        edge = frame.points(line.missing, np.full(len(line.missing), frame.up[1]))
        parts.append(f'<path class="missing" stroke="{line.colour}" d="{_dots(edge)}"/>')
    faint = ' class="faint"' if line.faint else ""
    return f"<g{faint}><title>{escaped(line.name)}</title>{''.join(parts)}</g>"


@_drawn.register
def _bands(picture: Bands) -> str:
    sums = np.cumsum([band.values for band in picture.bands], axis=0)
    frame = _Frame(picture.x, picture.y, _across(picture.x, picture.at), limits(picture.y, np.zeros(1), sums[-1]))
    below = [np.zeros(len(picture.at)), *sums[:-1]]
    parts = [
        f'<path fill="{band.colour}" d="{_between(frame, picture.at, low, high)}">'
        f"<title>{escaped(band.name)}</title></path>"
        for band, low, high in zip(picture.bands, below, sums, strict=True)
    ]
    return _framed(frame, parts, picture.marks)


def _between(frame: _Frame, x: Numbers, low: Numbers, high: Numbers) -> str:
    return _path(np.vstack([frame.points(x, high), frame.points(x, low)[::-1]])) + "Z"


@_drawn.register
def _bars(picture: Bars) -> str:
    most = np.concatenate([band.values for band in picture.bands])
    frame = _Frame(picture.x, picture.y, limits(picture.x, picture.edges), limits(picture.y, np.zeros(1), most))
    corners = np.rint(frame.left(picture.edges) * _WIDTH).astype(int)
    parts = []
    for band in picture.bands:
        tops = np.rint(frame.top(band.values) * _HEIGHT).astype(int)
        floor = round(float(frame.top(np.zeros(1))[0]) * _HEIGHT)
        boxes = "".join(
            f"M{left} {floor}V{top}H{right}V{floor}Z"
            for left, right, top, number in zip(corners, corners[1:], tops, band.values, strict=False)
            if number > 0
        )
        parts.append(f'<path class="bars" fill="{band.colour}" d="{boxes}"><title>{escaped(band.name)}</title></path>')
    return _framed(frame, parts, picture.marks)


@_drawn.register
def _grid(picture: Grid) -> str:
    across = _across(picture.x, picture.columns)
    image = b64encode(grid_png(picture, *across)).decode()
    inner = (
        f'<image class="cells" width="{_WIDTH}" height="{_HEIGHT}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{image}"/>'
    )
    frame = _Frame(picture.x, Axis(), across, (0.0, 1.0))
    boxes = [_box(frame, box, len(picture.rows)) for box in picture.boxes]
    return f"{_inner([inner, *boxes], frame)}{_horizontal(frame)}{_row_names(picture.rows, _short, tree=picture.tree)}"


@_drawn.register
def _strips(picture: Strips) -> str:
    rows, across = len(picture.rows), _across(picture.x)
    frame = _Frame(picture.x, Axis(), across, (0.0, 1.0))
    parts = []
    for place, row in enumerate(picture.rows):
        top, bottom = round((place + 0.15) / rows * _HEIGHT), round((place + 0.85) / rows * _HEIGHT)
        for piece in row.pieces:
            left, right = np.rint(frame.left(np.array([piece.begin, piece.end])) * _WIDTH).astype(int).tolist()
            # What takes a moment can be seen, too.
            box = f"M{left} {top}H{max(right, left + 4)}V{bottom}H{left}Z"
            title = f"<title>{escaped(f'{row.name}: {piece.text}')}</title>"
            parts.append(f'<path class="piece {piece.tone}" d="{box}">{title}</path>')
    return f"{_inner(parts, frame)}{_horizontal(frame)}{_row_names((row.name for row in picture.rows), _short_end)}"


def _box(frame: _Frame, box: GridBox, rows: int) -> str:
    left, right = np.rint(frame.left(np.array([box.begin, box.end])) * _WIDTH).astype(int).tolist()
    top, bottom = round(box.row / rows * _HEIGHT), round((box.row + 1) / rows * _HEIGHT)
    title = f"<title>{escaped(box.text)}</title>"
    return f'<path class="box {box.tone}" d="M{left} {top}H{max(right, left + 12)}V{bottom}H{left}Z">{title}</path>'


def _row_names(names: Iterable[str], short: Callable[[str], str], *, tree: bool = False) -> str:
    names = list(names)
    drawn = _in_tree(names) if tree else names
    return "".join(
        f'<text class="row" x="-8" y="{_percent((place + 0.5) / len(names))}" dy="4">{escaped(short(text))}'
        f"<title>{escaped(name)}</title></text>"
        for place, (name, text) in enumerate(zip(names, drawn, strict=True))
    )


def _in_tree(names: Sequence[str]) -> list[str]:
    """Long paths with an ellipsis for the modules that the path above is in, too."""
    found: list[str] = []
    above: list[str] = []
    for name in names:
        parts = name.split(".")
        common = 0
        while common < min(len(parts), len(above)) - 1 and parts[common] == above[common]:
            common += 1
        found.append(".".join(["…", *parts[common:]]) if common and len(name) > _WHOLE else name)
        above = parts
    return found


@_drawn.register
def _points(picture: Points) -> str:
    x, y = ([getattr(group, axis) for group in picture.groups] for axis in "xy")
    frame = _Frame(picture.x, picture.y, limits(picture.x, *x), limits(picture.y, *y))
    parts = [
        f'<path class="dots" stroke="{group.colour}" d="{_dots(frame.points(group.x[known], group.y[known]))}">'
        f"<title>{escaped(group.name)}</title></path>"
        for group in picture.groups
        if (known := np.isfinite(group.x) & np.isfinite(group.y)).any()
    ]
    return _framed(frame, parts, ())


@_drawn.register
def _image(picture: Image) -> str:
    height, width = picture.pixels.shape[:2]
    source = b64encode(image_png(picture.pixels)).decode()
    return (
        f'<svg width="100%" height="100%" viewBox="0 0 {width} {height}"><image class="cells" width="{width}" '
        f'height="{height}" href="data:image/png;base64,{source}"/></svg>'
    )


def _short_end(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _framed(frame: _Frame, parts: Iterable[str], marks: Sequence[Mark]) -> str:
    """What is drawn, with the grid and texts of both axes, and marks."""
    up = [(float(frame.top(np.array([place]))[0]), text) for place, text in ticks(frame.y, *frame.up, _UP)]
    lines = "".join(f"M0 {round(share * _HEIGHT)}H{_WIDTH}" for share, _ in up)
    places = [(float(frame.left(np.array([mark.at]))[0]), mark) for mark in marks]
    drawn = [
        f'<path class="grid" d="{lines}"/>', *parts,
        *(
            f'<path class="mark {mark.tone}" d="M{round(place * _WIDTH)} 0V{_HEIGHT}"/>'
            for place, mark in places
        ),
    ]  # fmt: skip
    texts = [f'<text class="up" x="-8" y="{_percent(share)}" dy="4">{text}</text>' for share, text in up] + [
        f'<text class="mark {mark.tone}{" before" if place > _NEAR_EDGE else ""}" x="{_percent(place)}" '
        f'dx="{-4 if place > _NEAR_EDGE else 4}" y="{12 + 15 * row}">{escaped(mark.text)}</text>'
        for row, (place, mark) in zip(_mark_rows(places), places, strict=True)
    ]
    return f"{_inner(drawn, frame)}{_horizontal(frame)}{''.join(texts)}"


def _mark_rows(places: Sequence[tuple[float, Mark]]) -> list[int]:
    """Rows of the texts of marks, each the first in which no other text is; of very many the emptiest."""
    ends: list[list[tuple[float, float]]] = [[] for _ in range(_MARK_ROWS)]
    found = []
    for place, mark in places:
        wide = _LETTER * (len(mark.text) + 1)
        begin, end = (place - wide, place) if place > _NEAR_EDGE else (place, place + wide)
        taken = [sum(first < end and begin < last for first, last in row) for row in ends]
        found.append(taken.index(min(taken)))
        ends[found[-1]].append((begin, end))
    return found


def _inner(parts: Iterable[str], frame: _Frame) -> str:
    """The numbers; the ends of the horizontal axis are for who points at it."""
    low, high = frame.across
    scaled = " data-log" if frame.x.logarithmic else ""
    return (
        f'<svg class="plot" data-axis="{escaped(frame.x.title)}" data-across="{low:.9g} {high:.9g}"{scaled} '
        f'width="100%" height="100%" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'overflow="visible">{"".join(parts)}</svg>'
    )


def _horizontal(frame: _Frame) -> str:
    """Texts of the horizontal axis, and its title."""
    found = [(float(frame.left(np.array([place]))[0]), text) for place, text in ticks(frame.x, *frame.across, _ACROSS)]
    shown = [f'<text class="across" x="{_percent(share)}" y="100%" dy="18">{text}</text>' for share, text in found]
    return f'{"".join(shown)}<text class="across title" x="50%" y="100%" dy="36">{escaped(frame.x.title)}</text>'


def _across(axis: Axis, *numbers: Numbers) -> tuple[float, float]:
    """The ends of a horizontal axis: without room beside the numbers, if there are several."""
    low = min((float(each[0]) for each in numbers if len(each)), default=0.0) if axis.low is None else axis.low
    high = max((float(each[-1]) for each in numbers if len(each)), default=1.0) if axis.high is None else axis.high
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _stretches(known: NDArray[np.bool_]) -> list[slice]:
    """Stretches of neighbours that are known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]


def _path(points: NDArray[np.int64]) -> str:
    """A course through points; those that fall on their predecessor are left out."""
    if len(points) > 1:
        points = points[np.concatenate([[True], (np.diff(points, axis=0) != 0).any(1)])]
    (left, top), rest = points[0].tolist(), points[1:].tolist()
    if not rest:
        return f"M{left} {top}h0"
    return f"M{left} {top}L{' '.join(f'{x} {y}' for x, y in rest)}"


def _dots(points: NDArray[np.int64]) -> str:
    return "".join(f"M{x} {y}h0" for x, y in points.tolist())


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%".replace(".00%", "%")


def scale_svg(number: int = 24) -> str:
    """The colours of a grid from dark to bright."""
    colours = ("#" + bytes(row).hex() for row in scale(np.linspace(0.0, 1.0, number)))
    boxes = "".join(f'<path fill="{colour}" d="M{5 * place} 0h5v10h-5z"/>' for place, colour in enumerate(colours))
    return f'<svg class="scale" width="{5 * number}" height="10" aria-hidden="true">{boxes}</svg>'


def sparkline(values: Sequence[float], title: str, colour: str) -> str:
    """A course as an element of a line of text; numbers that are not finite are marks at the upper edge.

    Args:
        values: The numbers, at equal distances.
        title: What it shows, plain text.
        colour: That of the run.
    """
    y = np.asarray(values, np.float64)
    x = np.arange(len(y), dtype=np.float64)
    known = np.isfinite(y)
    frame = _Frame(Axis(), Axis(), (0.0, max(1.0, len(y) - 1.0)), limits(Axis(), y))
    course = "".join(_path(frame.points(x[part], y[part])) for part in _stretches(known))
    lost = _dots(frame.points(x[~known], np.full(int((~known).sum()), frame.up[1])))
    return (
        f'<svg class="spark" width="110" height="26" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'overflow="visible" role="img" aria-label="{escaped(title)}"><path stroke="{colour}" d="{course}"/>'
        + (f'<path class="missing" d="{lost}"/>' if lost else "")
        + "</svg>"
    )
