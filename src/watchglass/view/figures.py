"""Figures of a run, as plotly figures, the same for a notebook and a report.

Every figure is made from a :class:`~watchglass.run.Run` and holds all its data. Long series are thinned to keep the
figure small; every spike is kept.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.errors import UnknownNameError
from watchglass.records import Finding, Mode, Role, Severity, series_name
from watchglass.run import leaders_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from watchglass.run import Run
    from watchglass.tables import Stretch

Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]

#: Colours that colour-blind readers can distinguish too, on white and on near-black (after Okabe and Ito).
COLOURS = {"train": "#3A8FD0", "eval": "#E69F00", "error": "#D55E00", "warning": "#CC79A7", "info": "#56B4E9"}
#: Colour of cells that hold a value which is not finite; not in the scale of the others.
NON_FINITE = "#FF2D95"

_MAX_POINTS, _MAX_COLUMNS, _MAX_ROWS, _MAX_MARKS, _MAX_MODELS = 4000, 400, 150, 8, 12
#: Most lines with a legend, most small figures of a page, and most points that are drawn as markers.
_MAX_LEGEND, _MAX_SCALARS, _MAX_DOTS = 12, 24, 60
#: The colours of gradient norms span at least this many powers of ten.
_DECADES = 4.0
#: Characters of a legend's line.
_LEGEND_CHARACTERS = 130
#: Scalars that capture records without the script.
_OURS = {"loss", "accuracy", "gradient_norm", "gradient_norm_before_clip"}


def loss_figure(run: Run, findings: Sequence[Finding] = ()) -> go.Figure | None:
    """Loss by model and mode over training steps, with the first findings marked; None when no loss was recorded.

    Training losses that are not finite are crosses at the upper edge. The axis is logarithmic when the losses span
    more than two orders of magnitude.
    """
    curves = _curves(run, "loss")
    if not curves:
        return None
    figure, finite = _drawn("Loss", "loss", curves)
    if len(finite) and finite.min() > 0 and float(finite.max() / finite.min()) > 100:
        _logarithmic(figure, finite)
    top = float(finite.max()) if len(finite) else 1.0
    for curve in curves:
        steps, series = curve.series
        _non_finite_marks(figure, curve.name, steps[~np.isfinite(series)], top, curve.colour)
    _mark_findings(figure, run, findings)
    _legend(figure)
    return figure


def accuracy_figure(run: Run) -> go.Figure | None:
    """Accuracy by model and mode over training steps; None when none was recorded."""
    curves = [curve._replace(opacity=1.0 if curve.markers else 0.7) for curve in _curves(run, "accuracy")]
    if not curves:
        return None
    figure, _ = _drawn("Accuracy", "accuracy", curves)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    _legend(figure)
    return figure


def gradient_heatmap(run: Run) -> go.Figure | None:
    """Norm of every weight's gradient over layers and steps, log10; None when none was captured.

    The first layer is at the top. A cell with a value that is not finite has a separate colour. Weights that are
    vectors, such as those of normalisation layers, are omitted while their gradients are finite: they have few
    elements, so their norms are small compared with those of matrices even in a healthy model.
    """
    rows = [_GradientRow.of(run, name) for name in layer_names(run, Role.GRADIENT)]
    rows = [row for row in rows if len(row.norms[0])]
    rows = [row for row in rows if not row.vector or row.broken] or rows
    if not rows:
        return None
    # Models are captured at different steps: each has its own columns.
    parts = [_HeatmapPart.of([row for row in rows if row.model == model]) for model in sorted({r.model for r in rows})]
    known = np.concatenate([part.known for part in parts])
    high = float(known.max()) if len(known) else 0.0
    # Only far smaller norms are dark, because layers of a healthy model differ too.
    low = min(float(known.min()) if len(known) else high, high - _DECADES)
    figure = _figure("Gradient norm by layer", "training step", "")
    labels = [label for part in parts for label in part.labels]
    for number, part in enumerate(parts):
        figure.add_heatmap(
            x=part.steps, y=labels, z=_rounded(part.among(labels, np.where(part.zero, low, part.logs))), zmin=low,
            zmax=high, colorscale="Viridis", showscale=number == 0,
            colorbar={"title": {"text": "log10"}, "thickness": 12}, hoverongaps=False,
            hovertemplate="%{y}<br>step %{x}<br>norm 10^%{z:.2f}<extra></extra>",
        )  # fmt: skip
    broken = [part for part in parts if part.broken.any()]
    for part in broken:
        figure.add_heatmap(
            x=part.steps, y=labels, z=part.among(labels, np.where(part.broken, 1.0, np.nan)),
            colorscale=[[0, NON_FINITE], [1, NON_FINITE]], showscale=False, hoverongaps=False,
            hovertemplate="%{y}<br>step %{x}<br>not finite<extra></extra>",
        )  # fmt: skip
    if broken:
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name="NaN or infinite",
            marker={"symbol": "square", "size": 11, "color": NON_FINITE},
        )  # fmt: skip
    figure.update_layout(height=max(300, 110 + 17 * len(labels)), showlegend=bool(broken))
    figure.update_yaxes(
        autorange="reversed", type="category", categoryorder="array", categoryarray=labels, showgrid=False
    )
    first, last = (edge(part.steps[i] for part in parts) for edge, i in ((min, 0), (max, -1)))
    figure.update_xaxes(range=[first - 0.5, last + 0.5])  # the outer cells would reach as far as the inner ones
    return figure


def update_ratio_figure(run: Run) -> go.Figure | None:
    """Size of each update relative to its weight, log10 of rms over rms, one line per layer; None without updates.

    The band between 1e-4 and 1e-1 is the usual range of runs that learn.
    """
    weights = [name.removeprefix("update/") for name in layer_names(run, Role.UPDATE)]
    ratios = [_ratio(_reduction(run, f"update/{name}", "rms"), _reduction(run, name, "rms")) for name in weights]
    curves = _shaded(zip(weights, ratios, strict=True))
    if not curves:
        return None
    figure, values = _drawn("Update size relative to the weight", "update / weight", curves)
    _logarithmic(figure, np.concatenate([[1e-4, 1e-1], values]))
    figure.add_hrect(y0=1e-4, y1=1e-1, fillcolor="#009E73", opacity=0.10, line_width=0)
    if len(curves) > _MAX_LEGEND:
        _depth_scale(figure, len(curves))
    else:
        _legend(figure)
    return figure


def gradient_norm_figure(run: Run) -> go.Figure | None:
    """Norm of all gradients, by model, after and before clipping. None without any."""
    curves = [
        curve._replace(
            name=(curve.name.removesuffix("training").rstrip(", ") + more or "gradient norm").strip(), dash=dash
        )
        for name, more, dash in (
            ("gradient_norm", "", "solid"),
            ("gradient_norm_before_clip", " before clipping", "dot"),
        )
        for curve in _curves(run, name)
        if not curve.markers
    ]
    if not curves:
        return None
    figure, finite = _drawn("Gradient norm", "norm of all gradients", curves)
    positive = finite[finite > 0]
    if len(positive) and float(positive.max() / positive.min()) > 20:
        _logarithmic(figure, positive)
    _legend(figure)
    return figure


def learning_rate_figure(run: Run) -> go.Figure | None:
    """Learning rates over training steps, one line for each that was recorded; None without any."""
    names = (name for name in _scalar_names(run) if _plain(name).startswith("learning_rate"))
    curves = _shaded(((name, _scalar(run, name)) for name in names), _MAX_LEGEND)
    if not curves:
        return None
    if len(curves) == 1:
        curves = [curves[0]._replace(colour=COLOURS["train"])]
    figure, _ = _drawn("Learning rate", "learning rate", curves)
    figure.update_yaxes(exponentformat="power", rangemode="tozero")
    _legend(figure)
    return figure


def scalar_figures(run: Run) -> tuple[list[go.Figure], int]:
    """A small figure for each scalar that the script saved, and the number of further ones."""
    made: list[go.Figure] = []
    more = 0
    for name in _scalar_names(run):
        if _is_ours(name):
            continue
        train, evaluation = _scalar(run, name), _stretch_means(run, name)
        if not len(train[0]) and not len(evaluation[0]):
            continue
        if len(made) == _MAX_SCALARS:
            more += 1
            continue
        figure = _figure(escape(name), "", "")
        _line(figure, _Curve("training", train, COLOURS["train"]))
        _line(figure, _Curve("validation", evaluation, COLOURS["eval"], markers=True))
        both = len(train[0]) > 0 and len(evaluation[0]) > 0
        figure.update_layout(height=230, margin={"l": 50, "r": 10, "t": 40, "b": 30}, showlegend=both)
        figure.update_layout(title={"font": {"size": 13}})
        made.append(figure)
    _align(run, made)
    return made, more


def run_figures(run: Run, findings: Sequence[Finding] = ()) -> list[tuple[str, go.Figure]]:
    """Every figure that the run has data for, with a caption: how to read it, which part of the run it shows."""
    models, leaders = run.models, leaders_of(run)
    first = f" Shown: {run.worker().name}, one of {len(run.workers):,} workers." if len(run.workers) > 1 else ""
    curves = first if len(leaders) == 1 else ""
    curves += f" Shown: the first {_MAX_MODELS} of {len(models):,} models." if len(models) > _MAX_MODELS else ""
    made = [
        (loss_figure(run, findings), "Loss of every training step and mean loss of every evaluation." + curves),
        (accuracy_figure(run), "Share of correct predictions, as recorded in the run." + curves),
        (learning_rate_figure(run), "Learning rates of the optimizers, as their schedules set them." + first),
        (gradient_norm_figure(run), "Norm of all gradients of a model, as its optimizer used them." + curves),
        (
            gradient_heatmap(run),
            "One row per weight matrix, the first layer at the top. Dark cells: the gradient is close to zero. "
            "Vectors, such as weights of normalisation layers, are omitted: their gradients are always small." + first,
        ),
        (
            update_ratio_figure(run),
            "Size of each update relative to its weight. Green: the usual range of runs that learn." + first,
        ),
    ]
    _align(run, [figure for figure, _ in made if figure is not None])
    return [(caption, figure) for figure, caption in made if figure is not None]


def _align(run: Run, figures: Iterable[go.Figure]) -> None:
    """Give figures of one page the same range of steps, with ticks at whole steps."""
    steps = [step for worker in leaders_of(run) for step in run.steps(Mode.TRAIN, worker)]
    if not len(steps):
        return
    first, last = min(steps), max(steps)
    room = max(0.5, 0.01 * (last - first))
    for figure in figures:
        figure.update_xaxes(range=[first - room, last + room])
        if last - first < 10:
            figure.update_xaxes(dtick=1)  # there is no half a step


def layer_names(run: Run, role: Role) -> list[str]:
    """Names of the weights' tensors of a role, by model, then as the layers run; the outermost of very many."""
    infos = [run.tensor(name).info for name in run.tensor_names(role=role)]
    infos = [info for info in infos if not info.name.endswith("bias")] or infos
    infos.sort(key=lambda info: (info.model or 0, info.layer_index < 0, info.layer_index, info.tensor_id))
    return [str(name) for name in _spread(np.array([info.name for info in infos]), _MAX_ROWS)]


def escape(name: str) -> str:
    """``name`` for plotly, which would take a part of HTML in it for markup."""
    return html.escape(name, quote=False)


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


class _GradientRow(NamedTuple):
    """The gradient of one weight over the steps at which it was captured."""

    name: str
    model: int
    vector: bool
    norms: Series
    nonfinite: Series

    @classmethod
    def of(cls, run: Run, name: str) -> _GradientRow:
        info = run.tensor(name).info
        vector = len(info.shape) == 1
        return cls(name, info.model or 0, vector, _reduction(run, name, "l2"), _reduction(run, name, "nonfinite"))

    @property
    def broken(self) -> bool:
        return bool((self.nonfinite[1] > 0).any() or np.isinf(self.norms[1]).any())


class _HeatmapPart(NamedTuple):
    """Cells of the rows of one model: logarithms of norms, which of them are zero, which are not finite."""

    steps: npt.NDArray[Any]
    labels: list[str]
    logs: npt.NDArray[np.float64]
    zero: npt.NDArray[np.bool_]
    broken: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[_GradientRow]) -> _HeatmapPart:
        steps = _thin_columns(
            np.unique(np.concatenate([row.norms[0] for row in rows])),
            np.unique(np.concatenate([row.nonfinite[0][row.nonfinite[1] > 0] for row in rows])),
        )
        norms = np.stack([_on_steps(row.norms, steps) for row in rows])
        broken = (np.stack([_on_steps(row.nonfinite, steps) for row in rows]) > 0) | np.isinf(norms)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(broken, np.nan, np.log10(norms))
        labels = [escape(row.name.removeprefix("gradient/")) for row in rows]
        return cls(steps, labels, logs, norms == 0, broken)

    def among(self, labels: Sequence[str], cells: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """``cells`` with a row for each of ``labels``: plotly cannot draw a heatmap on some categories of an axis."""
        result = np.full((len(labels), len(self.steps)), np.nan)
        result[[labels.index(label) for label in self.labels]] = cells
        return result

    @property
    def known(self) -> npt.NDArray[np.float64]:
        return self.logs[np.isfinite(self.logs)]


def _scalar_names(run: Run) -> list[str]:
    """Names of the numbers that were recorded of steps: losses, metrics, and what the script saved."""
    return [name for role in (Role.LOSS, Role.METRIC, Role.CUSTOM) for name in run.tensor_names(role=role)]


def _plain(name: str) -> str:
    """The name of a series without the model that it is of."""
    head, _, tail = name.partition("/")
    return tail if tail and head.startswith("model_") and head[len("model_") :].isdigit() else name


def _is_ours(name: str) -> bool:
    """Whether a number is computed by capture, so that another figure shows it or its content."""
    plain = _plain(name)
    return plain in _OURS or plain.startswith(("loss/", "learning_rate"))


def _legend(figure: go.Figure) -> None:
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


def _depth_scale(figure: go.Figure, lines: int) -> None:
    """A scale of colours in place of a legend that would be longer than its figure."""
    figure.add_scatter(
        x=[None], y=[None], mode="markers", hoverinfo="skip", showlegend=False,
        marker={
            "color": [0], "cmin": 0, "cmax": lines - 1, "colorscale": "Viridis", "showscale": True,
            "colorbar": {
                "title": {"text": "layer"}, "thickness": 12, "tickvals": [0, lines - 1], "ticktext": ["first", "last"],
            },
        },
    )  # fmt: skip
    figure.update_layout(showlegend=False)


def _figure(title: str, x: str, y: str) -> go.Figure:
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


def _logarithmic(figure: go.Figure, values: npt.NDArray[np.float64]) -> None:
    """A logarithmic axis for positive values, with a tick at powers of ten and at most about eight of them."""
    decades = float(np.log10(values.max()) - np.log10(values.min()))
    figure.update_yaxes(type="log", exponentformat="power", dtick=max(1, math.ceil(decades / 8)))


def _drawn(title: str, y: str, curves: Sequence[_Curve]) -> tuple[go.Figure, npt.NDArray[np.float64]]:
    """A figure with curves over training steps, and all their finite values."""
    figure = _figure(title, "training step", y)
    for curve in curves:
        _line(figure, curve)
    values = np.concatenate([curve.series[1] for curve in curves])
    return figure, values[np.isfinite(values)]


def _line(figure: go.Figure, curve: _Curve) -> None:
    if not len(curve.series[0]):
        return
    steps, values = thin(*curve.series)
    figure.add_scatter(
        x=steps, y=_rounded(np.where(np.isfinite(values), values, np.nan)), name=curve.name, opacity=curve.opacity,
        mode="lines+markers" if curve.markers or len(steps) <= _MAX_DOTS else "lines", connectgaps=False,
        line={"color": curve.colour, "width": 1.6, "dash": curve.dash}, marker={"size": 6 if curve.markers else 4},
        hovertemplate="step %{x}: %{y:.4g}<extra>" + curve.name + "</extra>",
    )  # fmt: skip


def _non_finite_marks(figure: go.Figure, name: str, steps: npt.NDArray[Any], top: float, colour: str) -> None:
    if not len(steps):
        return
    shown = thin(steps, np.zeros(len(steps)), 300)[0]
    figure.add_scatter(
        x=shown, y=np.full(len(shown), top), mode="markers", name=f"{name} loss not finite",
        marker={"symbol": "x", "size": 8, "color": colour},
        hovertemplate="step %{x}: not finite<extra>" + name + "</extra>",
    )  # fmt: skip


def _mark_findings(figure: go.Figure, run: Run, findings: Iterable[Finding]) -> None:
    """A dotted line with the rule's name at the step at which each rule first found something of a severity."""
    stretches = {worker: run.stretches(Mode.EVAL, worker) for worker in run.workers}
    marks: dict[tuple[str, Severity], int] = {}
    for finding in findings:
        step = _training_step(finding, stretches.get(finding.worker, ()))
        key = (finding.rule, finding.severity)
        if step is not None and step < marks.get(key, step + 1):
            marks[key] = step
    ordered = sorted(marks.items(), key=lambda item: (-item[0][1].rank, item[1]))[:_MAX_MARKS]
    for position, ((rule, severity), step) in enumerate(sorted(ordered, key=lambda item: item[1])):
        figure.add_shape(
            type="line", x0=step, x1=step, y0=0, y1=1, yref="paper",
            line={"dash": "dot", "width": 1.5, "color": COLOURS[severity.value]},
        )  # fmt: skip
        figure.add_annotation(
            x=step, y=0.98 - 0.085 * (position % 5), yref="paper", text=escape(rule), showarrow=False, xanchor="left",
            xshift=3, font={"size": 11, "color": COLOURS[severity.value]},
        )  # fmt: skip


def _training_step(finding: Finding, stretches: Iterable[Stretch]) -> int | None:
    """The training step at which a finding was made, by the run's evaluation stretches; None where that is unknown."""
    if finding.mode is Mode.TRAIN:
        return finding.step
    for stretch in stretches:
        if stretch.mode is finding.mode and stretch.first_step <= finding.step <= stretch.last_step:
            return max(0, stretch.train_step)
    return None


class _Curve(NamedTuple):
    """A series in a figure."""

    name: str
    series: Series
    colour: str
    markers: bool = False
    opacity: float = 1.0
    dash: str = "solid"


def _shades(number: int) -> list[str]:
    """``number`` colours, from dark to bright."""
    from plotly.colors import sample_colorscale

    return list(sample_colorscale("Viridis", [0.1 + 0.8 * i / max(1, number - 1) for i in range(number)]))


def _shaded(lines: Iterable[tuple[str, Series]], most: int | None = None) -> list[_Curve]:
    """Curves of the first series that are not empty, each in a separate shade."""
    found = [(name, series) for name, series in lines if len(series[0])][:most]
    return [
        _Curve(escape(name), series, shade) for (name, series), shade in zip(found, _shades(len(found)), strict=True)
    ]


def _curves(run: Run, name: str) -> list[_Curve]:
    """A series of each model, in training and in evaluation, if recorded; with very many models only
    the first ones.
    """  # noqa: D205
    models = run.models[:_MAX_MODELS]
    several = len(models) > 1
    found: list[_Curve] = []
    for shade, model in zip(_shades(len(models)), models, strict=True):
        series, worker = series_name(name, model.model), model.worker or None
        whose = f"{model.name}{f' of {escape(model.worker)}' if worker else ''}, " if several else ""
        of = f" ({escape(model.validation_of)})" if name == "loss" and model.validation_of else ""
        colours = (shade, shade) if several else (COLOURS["train"], COLOURS["eval"])
        found.append(_Curve(f"{whose}training", _scalar(run, series, worker), colours[0]))
        found.append(_Curve(f"{whose}validation{of}", _stretch_means(run, series, worker), colours[1], markers=True))
    return [curve for curve in found if len(curve.series[0])]


def _scalar(run: Run, name: str, worker: str | None = None) -> Series:
    try:
        return run.scalars(name, Mode.TRAIN, worker)
    except UnknownNameError:  # not every run has an accuracy
        return np.empty(0, dtype=np.int64), np.empty(0)


def _stretch_means(run: Run, name: str, worker: str | None = None) -> Series:
    """Means over the evaluation stretches, at the training steps after which they took place."""
    stretches = [stretch for stretch in run.stretches(Mode.EVAL, worker) if name in stretch.means]
    steps = np.array([max(0, stretch.train_step) for stretch in stretches], dtype=np.int64)
    return steps, np.array([stretch.means[name] for stretch in stretches], dtype=np.float64)


def _reduction(run: Run, name: str, reduction: str) -> Series:
    """The course of a statistic; without a row where the tensor was not captured."""
    try:
        return run.tensor(name).reductions(reduction, Mode.TRAIN)
    except UnknownNameError:
        return np.empty(0, dtype=np.int64), np.empty(0)


def _ratio(above: Series, below: Series) -> Series:
    """Quotient at the steps that both series have, where it is positive."""
    steps, first, second = np.intersect1d(above[0], below[0], return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = above[1][first] / below[1][second]
    good = np.isfinite(values) & (values > 0)
    return steps[good], values[good]


def _on_steps(series: Series, steps: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values of a series at ``steps``, NaN where it has none."""
    result = np.full(len(steps), np.nan)
    _, there, here = np.intersect1d(steps, series[0], return_indices=True)
    result[there] = series[1][here]
    return result


def _thin_columns(steps: npt.NDArray[Any], broken: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Evenly spread columns of a heatmap, and enough broken ones to keep every broken range."""
    if len(steps) <= _MAX_COLUMNS:
        return steps
    return np.union1d(_spread(steps, _MAX_COLUMNS), _spread(broken, _MAX_COLUMNS // 4))


def _spread(values: npt.NDArray[Any], limit: int) -> npt.NDArray[Any]:
    """At most ``limit`` of the values, the first and the last among them."""
    if len(values) > limit:
        values = values[np.unique(np.linspace(0, len(values) - 1, limit).round().astype(int))]
    return values


def _rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Single precision: twice what a screen can show, at half the size."""
    limit = float(np.finfo(np.float32).max)
    return np.clip(values, -limit, limit).astype(np.float32)
