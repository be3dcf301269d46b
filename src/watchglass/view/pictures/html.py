"""A picture as an element of a page: title, legend, drawing, caption, and its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from watchglass.view.pictures.colours import NON_FINITE
from watchglass.view.pictures.numbers import numbers_of
from watchglass.view.pictures.records import Bands, Bars, Grid, Image, Lines, Picture, Points, Story, Strips
from watchglass.view.pictures.svg import scale_svg, svg
from watchglass.view.pictures.table_html import table_html
from watchglass.view.pictures.ticks import with_unit
from watchglass.view.text import escaped, number

#: Height of the lanes of a story, in pixels.
_LANE = 96


def picture_html(picture: Picture, caption: str = "", *, level: int = 3) -> str:
    """The picture as a ``figure``.

    Args:
        picture: The picture.
        caption: How to read it, as plain text.
        level: Level of the heading of its title.
    """
    title = with_unit(picture.title, picture.y) if isinstance(picture, (Lines, Bands, Bars, Points)) else picture.title
    return (
        f'<figure class="{type(picture).__name__.lower()}"><h{level}>{escaped(title)}</h{level}>'
        f"{_drawing(picture)}"
        + (f"<figcaption>{escaped(caption)}</figcaption>" if caption else "")
        + f"<details class='numbers'><summary>Numbers</summary>{table_html(numbers_of(picture))}</details></figure>"
    )


@singledispatch
def _drawing(picture: Picture) -> str:
    return f'{_legend(picture)}<div class="picture">{svg(picture)}</div>'


@_drawing.register
def _of_story(picture: Story) -> str:
    return "".join(
        f'<div class="lane {type(lane).__name__.lower()}"><p class="lane-title">{escaped(lane.title)}</p>'
        f'{_legend(lane)}<div class="picture">{svg(lane, _LANE)}</div></div>'
        for lane in picture.lanes
    )


@singledispatch
def _legend(picture: Picture) -> str:
    return _keys((band.name, band.colour, "block") for band in picture.bands)  # type: ignore[union-attr]


@_legend.register
def _of_lines(picture: Lines) -> str:
    if picture.ordered:
        return f'<p class="legend">first layer {scale_svg()} last layer</p>'
    lines = [line for line in picture.lines if not line.faint]
    keys = [(line.name, line.colour, "dashed" if line.dashed else "dots" if line.dots else "") for line in lines]
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


@_legend.register
def _of_points(picture: Points) -> str:
    return _keys((group.name, group.colour, "block") for group in picture.groups)


@_legend.register(Image)
@_legend.register(Strips)
def _of_none(picture: Picture) -> str:
    return ""


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
