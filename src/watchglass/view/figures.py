"""Figures of a run, as plotly figures, the same for a notebook and a report.

Every figure is made from a :class:`~watchglass.run.Run` and holds all its data. Long series are thinned to keep the
figure small; every spike is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.errors import UnknownNameError
from watchglass.records import Finding, Mode, Role, series_name
from watchglass.run import leaders_of
from watchglass.view.plot import (
    COLOURS,
    Curve,
    Series,
    draw_line,
    escape,
    mark_findings,
    new_figure,
    place_legend,
    rounded,
    set_logarithmic,
    thin,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from watchglass.run import Run

#: Colour of cells that hold a value which is not finite; not in the scale of the others.
NON_FINITE = "#FF2D95"

_MAX_COLUMNS, _MAX_ROWS, _MAX_MODELS = 400, 150, 12
#: Most lines with a legend, and most small figures of a page.
_MAX_LEGEND, _MAX_SCALARS = 12, 24
#: The colours of gradient norms span at least this many powers of ten.
_DECADES = 4.0
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
        set_logarithmic(figure, finite)
    top = float(finite.max()) if len(finite) else 1.0
    for curve in curves:
        steps, series = curve.series
        _non_finite_marks(figure, curve.name, steps[~np.isfinite(series)], top, curve.colour)
    mark_findings(figure, run, findings)
    place_legend(figure)
    return figure


def accuracy_figure(run: Run) -> go.Figure | None:
    """Accuracy by model and mode over training steps; None when none was recorded."""
    curves = [curve._replace(opacity=1.0 if curve.markers else 0.7) for curve in _curves(run, "accuracy")]
    if not curves:
        return None
    figure, _ = _drawn("Accuracy", "accuracy", curves)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    place_legend(figure)
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
    figure = new_figure("Gradient norm by layer", "training step", "")
    labels = [label for part in parts for label in part.labels]
    for number, part in enumerate(parts):
        figure.add_heatmap(
            x=part.steps, y=labels, z=rounded(part.among(labels, np.where(part.zero, low, part.logs))), zmin=low,
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
    set_logarithmic(figure, np.concatenate([[1e-4, 1e-1], values]))
    figure.add_hrect(y0=1e-4, y1=1e-1, fillcolor="#009E73", opacity=0.10, line_width=0)
    if len(curves) > _MAX_LEGEND:
        _depth_scale(figure, len(curves))
    else:
        place_legend(figure)
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
        set_logarithmic(figure, positive)
    place_legend(figure)
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
    place_legend(figure)
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
        figure = new_figure(escape(name), "", "")
        draw_line(figure, Curve("training", train, COLOURS["train"]))
        draw_line(figure, Curve("validation", evaluation, COLOURS["eval"], markers=True))
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


def _drawn(title: str, y: str, curves: Sequence[Curve]) -> tuple[go.Figure, npt.NDArray[np.float64]]:
    """A figure with curves over training steps, and all their finite values."""
    figure = new_figure(title, "training step", y)
    for curve in curves:
        draw_line(figure, curve)
    values = np.concatenate([curve.series[1] for curve in curves])
    return figure, values[np.isfinite(values)]


def _non_finite_marks(figure: go.Figure, name: str, steps: npt.NDArray[Any], top: float, colour: str) -> None:
    if not len(steps):
        return
    shown = thin(steps, np.zeros(len(steps)), 300)[0]
    figure.add_scatter(
        x=shown, y=np.full(len(shown), top), mode="markers", name=f"{name} loss not finite",
        marker={"symbol": "x", "size": 8, "color": colour},
        hovertemplate="step %{x}: not finite<extra>" + name + "</extra>",
    )  # fmt: skip


def _shades(number: int) -> list[str]:
    """``number`` colours, from dark to bright."""
    from plotly.colors import sample_colorscale

    return list(sample_colorscale("Viridis", [0.1 + 0.8 * i / max(1, number - 1) for i in range(number)]))


def _shaded(lines: Iterable[tuple[str, Series]], most: int | None = None) -> list[Curve]:
    """Curves of the first series that are not empty, each in a separate shade."""
    found = [(name, series) for name, series in lines if len(series[0])][:most]
    return [
        Curve(escape(name), series, shade) for (name, series), shade in zip(found, _shades(len(found)), strict=True)
    ]


def _curves(run: Run, name: str) -> list[Curve]:
    """A series of each model, in training and in evaluation, if recorded; with very many models only
    the first ones.
    """  # noqa: D205
    models = run.models[:_MAX_MODELS]
    several = len(models) > 1
    found: list[Curve] = []
    for shade, model in zip(_shades(len(models)), models, strict=True):
        series, worker = series_name(name, model.model), model.worker or None
        whose = f"{model.name}{f' of {escape(model.worker)}' if worker else ''}, " if several else ""
        of = f" ({escape(model.validation_of)})" if name == "loss" and model.validation_of else ""
        colours = (shade, shade) if several else (COLOURS["train"], COLOURS["eval"])
        found.append(Curve(f"{whose}training", _scalar(run, series, worker), colours[0]))
        found.append(Curve(f"{whose}validation{of}", _stretch_means(run, series, worker), colours[1], markers=True))
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
