"""Pictures as figures of plotly."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import importing
from watchglass.view.pictures.colours import COLOURS, NON_FINITE, shades
from watchglass.view.pictures.png import image_png
from watchglass.view.pictures.records import (
    Axis,
    Bands,
    Bars,
    Grid,
    Image,
    Line,
    Lines,
    Mark,
    Picture,
    Points,
    Story,
    Strips,
    limits,
)
from watchglass.view.text import escaped

with importing("figures need plotly", "notebook"):
    from plotly.graph_objects import Figure

#: Heights of figures, of those of planes, of a row of a grid, and what a grid needs beside its rows, in pixels.
_HEIGHT, _SQUARE, _ROW, _AROUND = 360, 520, 20, 130
#: Heights of a lane of numbers in a story, and what is between lanes.
_LANE, _BETWEEN = 130, 34
#: Colours that make the scale of a grid, and rows of texts of marks.
_SHADES, _MARK_ROWS = 10, 5


def figure_of(picture: Picture) -> Figure:
    """A picture as a ``plotly.graph_objects.Figure``, with the numbers of the report under the pointer.

    Numbers are float32, so that a notebook that keeps the figure stays small. The template is plotly's default one,
    which a notebook sets with ``plotly.io.templates.default``.
    """
    figure = Figure()
    figure.update_layout(title_text=_text(picture.title), height=_HEIGHT, margin={"l": 70, "r": 20, "t": 60, "b": 50})
    _draw(picture, figure)
    return figure


@singledispatch
def _draw(picture: Picture, figure: Figure) -> None:
    raise TypeError(f"no way to draw {type(picture).__name__}")


@_draw.register
def _lines(picture: Lines, figure: Figure) -> None:
    heights = [each for line in picture.lines for each in (line.y, line.low, line.high) if each is not None]
    heights += [] if picture.zone is None else [np.array(picture.zone)]
    _axes(figure, picture.x, picture.y, *heights)
    top = limits(picture.y, *heights)[1]
    figure.add_traces([trace for line in picture.lines for trace in _line(line, top)])
    several = sum(trace.showlegend is not False for trace in figure.data) > 1
    figure.update_layout(hovermode="x unified", showlegend=several and not picture.ordered)
    if picture.zone is not None:
        figure.add_hrect(*picture.zone, fillcolor="#009E73", opacity=0.12, line_width=0)
    _mark(figure, picture.x, picture.marks)


def _line(line: Line, top: float) -> Iterable[dict[str, Any]]:
    """A line over the extremes that it was thinned from, and marks of numbers that are not finite."""
    own = {"type": "scatter", "x": _numbers(line.x), "legendgroup": line.name}
    if line.low is not None and line.high is not None:
        edge = {**own, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        yield {**edge, "y": _numbers(line.low)}
        yield {**edge, "y": _numbers(line.high), "fill": "tonexty", "fillcolor": _faint(line.colour)}
    drawn = {"color": line.colour, "width": 1.5, "dash": "dash" if line.dashed else "solid"}
    mode = "lines+markers" if line.dots or np.isfinite(line.y).sum() == 1 else "lines"
    yield {
        **own,
        "y": _numbers(line.y),
        "name": _text(line.name),
        "mode": mode,
        "line": drawn,
        "showlegend": not line.faint,
        "opacity": 0.3 if line.faint else 1.0,
    }
    if line.missing is not None and len(line.missing):
        yield {
            **own, "x": _numbers(line.missing), "y": np.full(len(line.missing), top, np.float32), "mode": "markers",
            "name": _text(f"{line.name}, not finite"), "marker": {"color": line.colour, "symbol": "x"},
            "hovertemplate": "not finite",
        }  # fmt: skip


@_draw.register
def _bands(picture: Bands, figure: Figure) -> None:
    _axes(figure, picture.x, picture.y)
    for band in picture.bands:
        figure.add_scatter(
            x=_numbers(picture.at), y=_numbers(band.values), name=_text(band.name), mode="lines", stackgroup="parts",
            fillcolor=band.colour, line={"width": 0, "color": band.colour},
        )  # fmt: skip
    figure.update_layout(hovermode="x unified", showlegend=True)
    _mark(figure, picture.x, picture.marks)


@_draw.register
def _bars(picture: Bars, figure: Figure) -> None:
    _axes(figure, picture.x, picture.y)
    corners = np.repeat(picture.edges, 2)[1:-1]
    for band in picture.bands:
        figure.add_scatter(
            x=_numbers(corners), y=_numbers(np.repeat(band.values, 2)), name=_text(band.name), mode="lines",
            fill="tozeroy", fillcolor=_faint(band.colour), line={"width": 1, "color": band.colour},
        )  # fmt: skip
    figure.update_layout(showlegend=len(picture.bands) > 1)
    _mark(figure, picture.x, picture.marks)


@_draw.register
def _grid(picture: Grid, figure: Figure) -> None:
    colours = shades(_SHADES)
    place = {"x": _numbers(picture.columns), "y": [_text(name) for name in picture.rows]}
    at = f"%{{y}}<br>{_text(picture.x.title)} %{{x}}<br>"
    figure.add_heatmap(
        **place, z=picture.cells, zmin=picture.low, zmax=picture.high,
        colorscale=[[number / (_SHADES - 1), colour] for number, colour in enumerate(colours)],
        colorbar={"title": {"text": _text(picture.scale), "side": "right"}},
        hovertemplate=f"{at}%{{z:.4g}}<extra></extra>",
    )  # fmt: skip
    if picture.broken.any():
        figure.add_heatmap(
            **place, z=np.where(picture.broken, np.float32(1), np.float32(np.nan)), showscale=False,
            colorscale=[[0, NON_FINITE], [1, NON_FINITE]], hovertemplate=f"{at}NaN or infinite<extra></extra>",
        )  # fmt: skip
    for box in picture.boxes:
        figure.add_shape(
            type="rect", x0=box.begin, x1=box.end, y0=box.row - 0.5, y1=box.row + 0.5,
            line={"color": COLOURS.get(box.tone, "#888888"), "width": 2},
        )  # fmt: skip
    figure.update_layout(height=_AROUND + max(200, _ROW * len(picture.rows)))
    figure.update_yaxes(autorange="reversed", automargin=True, type="category")
    figure.update_xaxes(title_text=_text(picture.x.title))


@_draw.register
def _points(picture: Points, figure: Figure) -> None:
    _axes(figure, picture.x, picture.y)
    for group in picture.groups:
        figure.add_scatter(
            x=_numbers(group.x), y=_numbers(group.y), name=_text(group.name), mode="markers",
            marker={"color": group.colour, "size": 6},
        )  # fmt: skip
    figure.update_layout(height=_SQUARE, showlegend=len(picture.groups) > 1)


@_draw.register
def _image(picture: Image, figure: Figure) -> None:
    figure.add_image(source=f"data:image/png;base64,{b64encode(image_png(picture.pixels)).decode()}", hoverinfo="skip")
    figure.update_layout(height=_SQUARE)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)


@_draw.register
def _strips(picture: Strips, figure: Figure) -> None:
    _axes(figure, picture.x, Axis())
    pieces = [(row.name, piece) for row in picture.rows for piece in row.pieces]
    for tone in dict.fromkeys(piece.tone for _, piece in pieces):
        own = [(name, piece) for name, piece in pieces if piece.tone == tone]
        # A gap follows each piece, so that plotly does not join them.
        places = [(place, name, piece.text) for name, piece in own for place in (piece.begin, piece.end, None)]
        x, names, texts = zip(*places, strict=True)
        figure.add_scatter(
            x=x, y=[_text(name) for name in names], text=[_text(text) for text in texts], mode="lines+markers",
            line={"width": 9, "color": COLOURS.get(tone, COLOURS["train"])}, marker={"size": 9, "symbol": "square"},
            hovertemplate="%{y}, %{x}<br>%{text}<extra></extra>", name=_text(tone or "other"), showlegend=False,
        )  # fmt: skip
    rows = [_text(row.name) for row in picture.rows]
    figure.update_layout(height=_AROUND + _ROW * len(rows))
    figure.update_yaxes(type="category", categoryarray=rows[::-1], automargin=True, range=[-0.6, len(rows) - 0.4])


@_draw.register
def _story(picture: Story, figure: Figure) -> None:
    heights = [_ROW * (1 + len(lane.rows)) if isinstance(lane, Strips) else _LANE for lane in picture.lanes]
    room = sum(heights) + _BETWEEN * (len(heights) - 1)
    tops = room - np.cumsum([0, *(height + _BETWEEN for height in heights[:-1])])
    for number, lane in enumerate(picture.lanes):
        own = figure_of(lane)
        axis = "y" if number == 0 else f"y{number + 1}"
        top = float(tops[number] / room)
        shown = own.layout.yaxis.update(domain=[max(0.0, top - heights[number] / room), top], anchor="x")
        figure.update_layout({f"yaxis{'' if number == 0 else number + 1}": shown, "title_text": _text(picture.title)})
        figure.add_traces([trace.update(yaxis=axis, showlegend=False) for trace in own.data])
        figure.add_annotation(
            text=_text(lane.title), x=0, y=top, xref="paper", yref="paper", xanchor="left",
            yanchor="bottom", showarrow=False, font={"size": 12},
        )  # fmt: skip
    last = "y" if len(heights) == 1 else f"y{len(heights)}"
    figure.update_xaxes(title_text=_text(picture.x.title), range=[picture.x.low, picture.x.high], anchor=last)
    figure.update_layout(height=_AROUND + room, hovermode="closest")


def _axes(figure: Figure, x: Axis, y: Axis, *heights: NDArray[Any]) -> None:
    """Titles, scales and ends of the axes; the vertical one shows some numbers as the report does."""
    ends = limits(y, *heights) if heights else (y.low, y.high)
    for update, axis, shown in ((figure.update_xaxes, x, (x.low, x.high)), (figure.update_yaxes, y, ends)):
        update(
            title_text=_text(axis.title), type="log" if axis.logarithmic else "linear", exponentformat="power",
            range=[None if end is None else _place(axis, end) for end in shown],
            tickformat=".0%" if axis.percent else None,
        )  # fmt: skip


def _mark(figure: Figure, x: Axis, marks: Sequence[Mark]) -> None:
    """Vertical lines, with texts that stand below each other."""
    for row, mark in enumerate(marks):
        colour = COLOURS.get(mark.tone, "#888888")
        figure.add_shape(
            type="line", x0=mark.at, x1=mark.at, yref="paper", y0=0, y1=1, line={"color": colour, "dash": "dot"}
        )
        figure.add_annotation(
            x=_place(x, mark.at), yref="paper", y=1 - 0.07 * (row % _MARK_ROWS), text=_text(mark.text), showarrow=False,
            xanchor="left", yanchor="top", font={"color": colour, "size": 11},
        )  # fmt: skip


def _place(axis: Axis, number: float) -> float:
    """A number as ranges and annotations of plotly take it."""
    return float(np.log10(number)) if axis.logarithmic else number


def _numbers(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def _faint(colour: str) -> str:
    """A colour of which a quarter is seen."""
    red, green, blue = bytes.fromhex(colour[1:])
    return f"rgba({red},{green},{blue},0.25)"


def _text(foreign: str) -> str:
    """Plain text: plotly reads a part of HTML, and formulas between dollar signs."""
    return escaped(foreign).replace("$", "&#36;")


def animated(frames: Sequence[tuple[str, Points]], title: str) -> Figure:
    """Points that move: a figure with a slider, and frames with names such as a step, which have the same groups."""
    figure = figure_of(frames[-1][1])
    figure.frames = [{"name": name, "data": figure_of(points).data} for name, points in frames]
    limits_x, limits_y = (
        limits(Axis(), *(getattr(group, axis) for _, points in frames for group in points.groups)) for axis in "xy"
    )
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 300}}
    moving = {"frame": {"duration": 600, "redraw": False}, "transition": {"duration": 400}, "fromcurrent": True}
    steps = [{"label": name, "method": "animate", "args": [[name], still]} for name, _ in frames]
    play = {"type": "buttons", "buttons": [{"label": "play", "method": "animate", "args": [None, moving]}]}
    figure.update_layout(
        title_text=_text(title), xaxis_range=limits_x, yaxis_range=limits_y,
        sliders=[{"steps": steps, "active": len(steps) - 1, "currentvalue": {"prefix": "step "}}],
        updatemenus=[{**play, "x": 1, "y": 1.12, "xanchor": "right", "showactive": False}],
    )  # fmt: skip
    return figure
