"""What figures are drawn with: an empty figure, lines, legends, logarithmic axes, and marks of findings."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.records import Finding, Mode, Severity

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from watchglass.run import Run
    from watchglass.tables import Stretch

Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]

#: Colours that colour-blind readers can distinguish too, on white and on near-black (after Okabe and Ito).
COLOURS = {"train": "#3A8FD0", "eval": "#E69F00", "error": "#D55E00", "warning": "#CC79A7", "info": "#56B4E9"}

_MAX_POINTS, _MAX_MARKS = 4000, 8
#: Share of the horizontal axis from which on the name of a mark stands left of it.
_NEAR_EDGE = 0.8
#: Most points that are drawn as markers, and characters of a line of a legend.
_MAX_DOTS, _LEGEND_CHARACTERS = 60, 130


class Curve(NamedTuple):
    """A series in a figure."""

    name: str
    series: Series
    colour: str
    markers: bool = False
    opacity: float = 1.0
    dash: str = "solid"


def new_figure(title: str, x: str, y: str) -> go.Figure:
    """An empty figure with titles of its axes."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "x": 0, "xref": "paper"}, height=340, margin={"l": 60, "r": 20, "t": 60, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", hovermode="closest", template="none",
        font={"family": "system-ui, sans-serif", "size": 13}, showlegend=True,
    )  # fmt: skip
    grid = {"zeroline": False, "showgrid": True, "gridcolor": "rgba(128,128,128,0.25)"}
    figure.update_xaxes(title={"text": x}, **grid)
    figure.update_yaxes(title={"text": y, "standoff": 12}, automargin=True, **grid)
    return figure


def set_logarithmic(figure: go.Figure, values: npt.NDArray[np.float64]) -> None:
    """A logarithmic axis for positive values, with a tick at powers of ten and at most about eight of them."""
    decades = float(np.log10(values.max()) - np.log10(values.min()))
    figure.update_yaxes(type="log", exponentformat="power", dtick=max(1, math.ceil(decades / 8)))


def draw_line(figure: go.Figure, curve: Curve) -> None:
    """Draw a curve over training steps; values that are not finite are gaps."""
    if not len(curve.series[0]):
        return
    steps, values = thin(*curve.series)
    figure.add_scatter(
        x=steps, y=rounded(np.where(np.isfinite(values), values, np.nan)), name=curve.name, opacity=curve.opacity,
        mode="lines+markers" if curve.markers or len(steps) <= _MAX_DOTS else "lines", connectgaps=False,
        line={"color": curve.colour, "width": 1.6, "dash": curve.dash}, marker={"size": 6 if curve.markers else 4},
        hovertemplate="step %{x}: %{y:.4g}<extra>" + curve.name + "</extra>",
    )  # fmt: skip


def place_legend(figure: go.Figure) -> None:
    """Put a legend of many or long names below the figure, where it grows without covering the title."""
    names = [trace.name or "" for trace in figure.data if trace.showlegend is not False]
    if len(names) < 2:
        figure.update_layout(showlegend=False)
        return
    width = max(map(len, names))
    if len(names) * (width + 6) <= _LEGEND_CHARACTERS // 2:
        return
    rows = math.ceil(len(names) / max(1, _LEGEND_CHARACTERS // (width + 6)))
    figure.update_layout(
        legend={"yanchor": "top", "y": -62 / 230, "xanchor": "left", "x": 0.0}, height=figure.layout.height + 21 * rows,
        margin={"b": 50 + 21 * rows},
    )  # fmt: skip


def mark_findings(
    figure: go.Figure, run: Run, findings: Iterable[Finding], place: Callable[[int], float] = float
) -> None:
    """A dotted line with the rule's name at the step at which each rule first found something of a severity.

    Args:
        figure: The figure.
        run: The run of the findings.
        findings: Of all modes; those of evaluations are marked at the training step before.
        place: Where on the horizontal axis a training step is.
    """
    stretches = {worker: run.stretches(Mode.EVAL, worker) for worker in run.workers}
    marks: dict[tuple[str, Severity], int] = {}
    for finding in findings:
        step = training_step(finding, stretches.get(finding.worker, ()))
        key = (finding.rule, finding.severity)
        if step is not None and step < marks.get(key, step + 1):
            marks[key] = step
    ordered = sorted(marks.items(), key=lambda item: (-item[0][1].rank, item[1]))[:_MAX_MARKS]
    ends = [float(end) for curve in figure.data if len(curve.x) for end in (curve.x[0], curve.x[-1])]
    # A name right of a mark near the right edge would be cut off.
    edge = min(ends, default=0.0) + _NEAR_EDGE * (max(ends, default=0.0) - min(ends, default=0.0))
    for position, ((rule, severity), step) in enumerate(sorted(ordered, key=lambda item: item[1])):
        side, shift = ("right", -3) if ends and place(step) > edge else ("left", 3)
        figure.add_shape(
            type="line", x0=place(step), x1=place(step), y0=0, y1=1, yref="paper",
            line={"dash": "dot", "width": 1.5, "color": COLOURS[severity.value]},
        )  # fmt: skip
        figure.add_annotation(
            x=place(step), y=0.98 - 0.085 * (position % 5), yref="paper", text=escape(rule), showarrow=False,
            xanchor=side, xshift=shift, font={"size": 11, "color": COLOURS[severity.value]},
        )  # fmt: skip


def training_step(finding: Finding, stretches: Iterable[Stretch]) -> int | None:
    """The training step at which a finding was made, by the run's evaluation stretches; None where that is unknown."""
    if finding.mode is Mode.TRAIN:
        return finding.step
    for stretch in stretches:
        if stretch.mode is finding.mode and stretch.first_step <= finding.step <= stretch.last_step:
            return max(0, stretch.train_step)
    return None


def thin(steps: npt.NDArray[Any], values: npt.NDArray[np.float64], limit: int = _MAX_POINTS) -> Series:
    """A series with at most about ``limit`` points: of each stretch the lowest, the highest and one not finite."""
    if len(steps) <= limit:
        return steps, values
    edges = np.linspace(0, len(steps), limit // 3 + 1).astype(int)
    keep: set[int] = {0, len(steps) - 1}
    for begin, end in pairwise(edges):
        part = values[begin:end]
        finite = np.flatnonzero(np.isfinite(part))
        if len(finite):
            keep |= {begin + int(finite[part[finite].argmin()]), begin + int(finite[part[finite].argmax()])}
        if len(finite) < len(part):
            keep.add(begin + int(np.flatnonzero(~np.isfinite(part))[0]))
    index = np.array(sorted(keep))
    return steps[index], values[index]


def rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Single precision: twice what a screen can show, at half the size."""
    limit = float(np.finfo(np.float32).max)
    return np.clip(values, -limit, limit).astype(np.float32)


def escape(name: str) -> str:
    """``name`` for plotly, which would take a part of HTML in it for markup."""
    return html.escape(name, quote=False)
