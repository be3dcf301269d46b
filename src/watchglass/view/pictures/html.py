"""A picture as an element of a page: title, legend, drawing, caption, and its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from watchglass.view.pictures.colours import NON_FINITE
from watchglass.view.pictures.records import Bands, Bars, Grid, Lines, Numbers, Picture
from watchglass.view.pictures.svg import scale_svg, svg
from watchglass.view.text import escaped, number

#: Rows of a table of numbers.
_ROWS = 24

Rows = list[tuple[str, ...]]


def picture_html(picture: Picture, caption: str = "", *, level: int = 3) -> str:
    """The picture as a ``figure``.

    Args:
        picture: The picture.
        caption: How to read it, as plain text.
        level: Level of the heading of its title.
    """
    head, rows = _table(picture)
    titles = "".join(f"<th>{escaped(each)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<figure class="{type(picture).__name__.lower()}"><h{level}>{escaped(picture.title)}</h{level}>'
        f'{_legend(picture)}<div class="picture">{svg(picture)}</div>'
        + (f"<figcaption>{escaped(caption)}</figcaption>" if caption else "")
        + f"<details class='numbers'><summary>Numbers</summary><div class='wide'>"
        f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div></details></figure>"
    )


@singledispatch
def _legend(picture: Picture) -> str:
    return _keys((band.name, band.colour, "block") for band in picture.bands)  # type: ignore[union-attr]


@_legend.register
def _of_lines(picture: Lines) -> str:
    if picture.ordered:
        return f'<p class="legend">first layer {scale_svg()} last layer</p>'
    kinds = ["dashed" if line.dashed else "dots" if line.dots else "" for line in picture.lines]
    keys = [(line.name, line.colour, kind) for line, kind in zip(picture.lines, kinds, strict=True)]
    keys += [
        (f"{line.name}, not finite", line.colour, "missing")
        for line in picture.lines
        if line.missing is not None and len(line.missing)
    ]
    return _keys(keys) if len(keys) > 1 else ""


@_legend.register
def _of_grid(picture: Grid) -> str:
    broken = _key("NaN or infinite", NON_FINITE, "block") if picture.broken.any() else ""
    ends = (f"{number(end)}" for end in (picture.low, picture.high))
    return f'<p class="legend">{escaped(picture.scale)}: {f" {scale_svg()} ".join(ends)} {broken}</p>'


def _keys(keys: Iterable[tuple[str, str, str]]) -> str:
    return f'<p class="legend">{" ".join(_key(*each) for each in keys)}</p>'


def _key(name: str, colour: str, kind: str) -> str:
    drawn = {
        "block": f'<path fill="{colour}" d="M2 2h14v8h-14z"/>',
        "missing": f'<path class="missing" stroke="{colour}" d="M9 6h0"/>',
        "dashed": f'<path class="line" stroke="{colour}" stroke-dasharray="5 4" d="M0 6h18"/>',
        "dots": f'<path class="line" stroke="{colour}" d="M0 6h18"/><path class="dots" stroke="{colour}" d="M9 6h0"/>',
    }.get(kind, f'<path class="line" stroke="{colour}" d="M0 6h18"/>')
    sample = f'<svg width="18" height="12" aria-hidden="true">{drawn}</svg>'
    return f"<span>{sample} {escaped(name)}</span>"


@singledispatch
def _table(picture: Picture) -> tuple[Sequence[str], Rows]:
    raise TypeError(f"no table of {type(picture).__name__}")


@_table.register
def _lines_table(picture: Lines) -> tuple[Sequence[str], Rows]:
    head = ("line", f"first {picture.x.title}", f"last {picture.x.title}", "first", "last", "least", "greatest")
    return head, [(line.name, *_course(line.x, line.y, line.low, line.high)) for line in picture.lines]


@_table.register
def _grid_table(picture: Grid) -> tuple[Sequence[str], Rows]:
    head = ("row", f"first {picture.x.title}", f"last {picture.x.title}", "first", "last", "least", "greatest")
    return head, [
        (name, *_course(picture.columns, cells.astype(np.float64)))
        for name, cells in zip(picture.rows, picture.cells, strict=True)
    ]


def _course(x: Numbers, y: Numbers, low: Numbers | None = None, high: Numbers | None = None) -> Iterable[str]:
    known = np.isfinite(y)
    if not known.any():
        return ("",) * 6
    at, values = x[known], y[known]
    least = np.nanmin(y if low is None else np.fmin(y, low))
    most = np.nanmax(y if high is None else np.fmax(y, high))
    ends = (f"{end:,.10g}" for end in (at[0], at[-1]))
    return (*ends, *(number(float(each)) for each in (values[0], values[-1], least, most)))


@_table.register
def _bands_table(picture: Bands) -> tuple[Sequence[str], Rows]:
    return _columns(picture.x.title, picture.at, picture.bands)


@_table.register
def _bars_table(picture: Bars) -> tuple[Sequence[str], Rows]:
    return _columns(f"from {picture.x.title}", picture.edges[:-1], picture.bands)


def _columns(title: str, at: NDArray[np.float64], bands: Sequence[object]) -> tuple[Sequence[str], Rows]:
    places = np.unique(np.linspace(0, len(at) - 1, _ROWS).round().astype(int))
    rows = [
        (f"{at[place]:,.4g}", *(number(float(band.values[place])) for band in bands))  # type: ignore[attr-defined]
        for place in places.tolist()
    ]
    return (title, *(band.name for band in bands)), rows  # type: ignore[attr-defined]
