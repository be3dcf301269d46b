"""Figures of a run as pictures, the same for a report, a page and a notebook.

Every figure is made from a :class:`~watchglass.run.Run`. Long series are thinned to keep it small; extremes are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from watchglass.errors import UnknownNameError
from watchglass.records import Finding, Mode, Role, series_name
from watchglass.run import leaders_of
from watchglass.view.pictures.colours import COLOURS, shades
from watchglass.view.pictures.records import Axis, Grid, Line, Lines, Picture
from watchglass.view.series import Series, line_of, marks_of

if TYPE_CHECKING:
    from watchglass.run import Run

_MAX_COLUMNS, _MAX_ROWS, _MAX_MODELS = 400, 150, 12
#: Most lines with a legend, and most small figures of a page.
_MAX_LEGEND, _MAX_SCALARS = 12, 24
#: The colours of gradient norms span at least this many powers of ten.
_DECADES = 4.0
#: Scalars that capture records without the script.
_OURS = {"loss", "accuracy", "gradient_norm", "gradient_norm_before_clip"}
_STEP = Axis("training step", whole=True)
_Shown = TypeVar("_Shown", bound="Lines | Grid")


def loss_figure(run: Run, findings: Sequence[Finding] = ()) -> Lines | None:
    """Loss by model and mode over training steps, with the first findings marked; None when no loss was recorded.

    Training losses that are not finite are marks at the upper edge. The axis is logarithmic when the losses span
    more than two orders of magnitude.
    """
    lines = _lines(run, "loss")
    if not lines:
        return None
    return Lines("Loss", _STEP, Axis("loss", logarithmic=_spans(lines, 100)), lines, marks_of(run, findings))


def accuracy_figure(run: Run) -> Lines | None:
    """Accuracy by model and mode over training steps; None when none was recorded."""
    lines = _lines(run, "accuracy")
    return Lines("Accuracy", _STEP, Axis("accuracy", low=0.0, high=1.0, percent=True), lines) if lines else None


def gradient_heatmap(run: Run) -> Grid | None:
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
    steps = _thin_columns(
        np.unique(np.concatenate([row.norms[0] for row in rows])),
        np.unique(np.concatenate([row.nonfinite[0][row.nonfinite[1] > 0] for row in rows])),
    )
    norms = np.stack([_held(row.norms, steps) for row in rows])
    broken = (np.stack([_held(row.nonfinite, steps) for row in rows]) > 0) | np.isinf(norms)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(broken, np.nan, np.log10(norms))
    known = logs[np.isfinite(logs)]
    high = float(known.max()) if len(known) else 0.0
    # Only far smaller norms are dark, because layers of a healthy model differ too.
    low = min(float(known.min()) if len(known) else high, high - _DECADES)
    cells = np.where(norms == 0, low, logs).astype(np.float32)
    names = tuple(row.name.removeprefix("gradient/") for row in rows)
    return Grid(
        "Gradient norm by layer", _STEP, names, steps.astype(np.float64), cells, low, high, "log10 of the norm", broken
    )


def update_ratio_figure(run: Run) -> Lines | None:
    """Size of each update relative to its weight, rms over rms, one line per layer; None without updates.

    The zone between 1e-4 and 1e-1 is the usual range of runs that learn.
    """
    weights = [name.removeprefix("update/") for name in layer_names(run, Role.UPDATE)]
    ratios = [_ratio(_reduction(run, f"update/{name}", "rms"), _reduction(run, name, "rms")) for name in weights]
    lines = _shaded(zip(weights, ratios, strict=True))
    if not lines:
        return None
    title = "Update size relative to the weight"
    axis = Axis("update / weight", logarithmic=True)
    return Lines(title, _STEP, axis, lines, zone=(1e-4, 1e-1), ordered=len(lines) > _MAX_LEGEND)


def gradient_norm_figure(run: Run) -> Lines | None:
    """Norm of all gradients, by model, after and before clipping. None without any."""
    lines = tuple(
        replace(
            line, name=(line.name.removesuffix("training").rstrip(", ") + more or "gradient norm").strip(),
            dashed=bool(more), missing=None,
        )
        for name, more in (("gradient_norm", ""), ("gradient_norm_before_clip", " before clipping"))
        for line in _lines(run, name)
        if not line.dots
    )  # fmt: skip
    if not lines:
        return None
    return Lines("Gradient norm", _STEP, Axis("norm of all gradients", logarithmic=_spans(lines, 20)), lines)


def learning_rate_figure(run: Run) -> Lines | None:
    """Learning rates over training steps, one line for each that was recorded; None without any."""
    names = (name for name in _scalar_names(run) if _plain(name).startswith("learning_rate"))
    lines = _shaded(((name, _scalar(run, name)) for name in names), _MAX_LEGEND)
    if len(lines) == 1:
        lines = (replace(lines[0], colour=COLOURS["train"]),)
    return Lines("Learning rate", _STEP, Axis("learning rate", low=0.0), lines) if lines else None


def scalar_figures(run: Run) -> tuple[list[Lines], int]:
    """A small figure for each scalar that the script saved, and the number of further ones."""
    made: list[Lines] = []
    more = 0
    for name in _scalar_names(run):
        if _is_ours(name):
            continue
        lines = [
            line_of("training", _scalar(run, name), COLOURS["train"]),
            line_of("validation", _stretch_means(run, name), COLOURS["eval"], dots=True),
        ]
        if len(made) == _MAX_SCALARS:
            more += 1
        elif any(len(line.x) for line in lines):
            made.append(Lines(name, Axis(), Axis(), tuple(line for line in lines if len(line.x))))
    return _aligned(run, made), more


def run_figures(run: Run, findings: Sequence[Finding] = ()) -> list[tuple[str, Picture]]:
    """Every figure that the run has data for, with a caption: how to read it, which part of the run it shows."""
    models, leaders = run.models, leaders_of(run)
    first = f" Shown: {run.worker().name}, one of {len(run.workers):,} workers." if len(run.workers) > 1 else ""
    curves = first if len(leaders) == 1 else ""
    curves += f" Shown: the first {_MAX_MODELS} of {len(models):,} models." if len(models) > _MAX_MODELS else ""
    made: list[tuple[Lines | Grid | None, str]] = [
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
    shown = [(caption, figure) for figure, caption in made if figure is not None]
    return list(zip([caption for caption, _ in shown], _aligned(run, [figure for _, figure in shown]), strict=True))


def _aligned(run: Run, figures: Sequence[_Shown]) -> list[_Shown]:
    """Figures of one page, with the same range of steps."""
    steps = [step for worker in leaders_of(run) for step in run.steps(Mode.TRAIN, worker)]
    if not steps:
        return list(figures)
    room = max(0.5, 0.01 * (max(steps) - min(steps)))
    low, high = min(steps) - room, max(steps) + room
    return [replace(figure, x=replace(figure.x, low=low, high=high, whole=True)) for figure in figures]


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


def _spans(lines: Sequence[Line], factor: float) -> bool:
    """Whether all numbers are positive and the greatest is more than ``factor`` times the least."""
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    return len(values) > 0 and bool(values.min() > 0) and float(values.max() / values.min()) > factor


def _shaded(lines: Iterable[tuple[str, Series]], most: int | None = None) -> tuple[Line, ...]:
    """Lines of the first series that are not empty, each in a separate shade."""
    found = [(name, series) for name, series in lines if len(series[0])][:most]
    return tuple(line_of(name, series, shade) for (name, series), shade in zip(found, shades(len(found)), strict=True))


def _lines(run: Run, name: str) -> tuple[Line, ...]:
    """A series of each model, in training and in evaluation, if recorded; with very many models only
    the first ones.
    """  # noqa: D205
    models = run.models[:_MAX_MODELS]
    several = len(models) > 1
    found: list[Line] = []
    for shade, model in zip(shades(len(models)), models, strict=True):
        series, worker = series_name(name, model.model), model.worker or None
        whose = f"{model.name}{f' of {model.worker}' if worker else ''}, " if several else ""
        of = f" ({model.validation_of})" if name == "loss" and model.validation_of else ""
        colours = (shade, shade) if several else (COLOURS["train"], COLOURS["eval"])
        found.append(line_of(f"{whose}training", _scalar(run, series, worker), colours[0]))
        found.append(line_of(f"{whose}validation{of}", _stretch_means(run, series, worker), colours[1], dots=True))
    return tuple(line for line in found if len(line.x))


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


def _held(series: Series, steps: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values of a series at ``steps``. NaN before its first step and after its last.

    Between two of its own steps, which are others where models take turns, it has the value of the one before.
    """
    if not len(series[0]):
        return np.full(len(steps), np.nan)
    place = np.searchsorted(series[0], steps, side="right") - 1
    return np.where((place < 0) | (steps > series[0][-1]), np.nan, series[1][np.maximum(place, 0)])


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
