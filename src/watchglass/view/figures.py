"""Figures of a run as pictures, the same for a report, a page and a notebook.

Every figure is made from a :class:`~watchglass.run.Run`. Long series are thinned to keep it small; extremes are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from watchglass.records import Finding, Mode, Role, series_name
from watchglass.run import leaders_of
from watchglass.view.layer_grids import GRADIENT_NORM, LAYER_FIELDS, layer_grid, layer_names, update_ratio
from watchglass.view.pictures.colours import COLOURS, shades
from watchglass.view.pictures.records import Axis, Grid, Line, Lines, Picture
from watchglass.view.series import Series, Steps, line_of, marks_of, within
from watchglass.view.smoothing import smoothed

if TYPE_CHECKING:
    from watchglass.run import Run

_MAX_MODELS = 12
#: Most lines with a legend, and most small figures of a page.
_MAX_LEGEND, _MAX_SCALARS = 12, 24
#: Scalars that capture records without the script.
_OURS = {"loss", "accuracy", "gradient_norm", "gradient_norm_before_clip"}
_STEP = Axis("training step", whole=True)
_Shown = TypeVar("_Shown", bound="Lines | Grid")


def loss_figure(run: Run, findings: Sequence[Finding] = (), steps: Steps = None, smooth: float = 0.0) -> Lines | None:
    """Loss by model and mode over training steps, with the first findings marked; None when no loss was recorded.

    Training losses that are not finite are marks at the upper edge. The axis is logarithmic when the losses span
    more than two orders of magnitude.

    Args:
        run: The run.
        findings: Findings of rules.
        steps: Only these training steps, half-open.
        smooth: Training losses are smoothed over so many steps, with the raw ones behind them; 0 for not at all.
    """
    lines = _lines(run, "loss", steps, smooth)
    if not lines:
        return None
    return Lines("Loss", _STEP, Axis("loss", logarithmic=_spans(lines, 100)), lines, marks_of(run, findings))


def accuracy_figure(run: Run, steps: Steps = None, smooth: float = 0.0) -> Lines | None:
    """Accuracy by model and mode over training steps; None when none was recorded. Arguments as of the loss."""
    lines = _lines(run, "accuracy", steps, smooth)
    return Lines("Accuracy", _STEP, Axis("accuracy", low=0.0, high=1.0, percent=True), lines) if lines else None


def update_ratio_figure(run: Run) -> Lines | None:
    """Size of each update relative to its weight, rms over rms, one line per layer; None without updates.

    The zone between 1e-4 and 1e-1 is the usual range of runs that learn.
    """
    weights = [name.removeprefix("update/") for name in layer_names(run, Role.UPDATE)]
    ratios = [update_ratio(run, name) for name in weights]
    lines = _shaded(zip(weights, ratios, strict=True))
    if not lines:
        return None
    title = "Update size relative to the weight"
    axis = Axis("update / weight", logarithmic=True)
    return Lines(title, _STEP, axis, lines, zone=(1e-4, 1e-1), ordered=len(lines) > _MAX_LEGEND)


def gradient_norm_figure(run: Run, steps: Steps = None) -> Lines | None:
    """Norm of all gradients, by model, after and before clipping. None without any."""
    lines = tuple(
        replace(
            line, name=(line.name.removesuffix("training").rstrip(", ") + more or "gradient norm").strip(),
            dashed=bool(more), missing=None,
        )
        for name, more in (("gradient_norm", ""), ("gradient_norm_before_clip", " before clipping"))
        for line in _lines(run, name, steps)
        if not line.dots
    )  # fmt: skip
    if not lines:
        return None
    return Lines("Gradient norm", _STEP, Axis("norm of all gradients", logarithmic=_spans(lines, 20)), lines)


def learning_rate_figure(run: Run, steps: Steps = None) -> Lines | None:
    """Learning rates over training steps, one line for each that was recorded; None without any."""
    names = (name for name in _scalar_names(run) if _plain(name).startswith("learning_rate"))
    lines = _shaded(((name, within(_scalar(run, name), steps)) for name in names), _MAX_LEGEND)
    if len(lines) == 1:
        lines = (replace(lines[0], colour=COLOURS["train"]),)
    return Lines("Learning rate", _STEP, Axis("learning rate", low=0.0), lines) if lines else None


def scalar_figures(run: Run, steps: Steps = None, smooth: float = 0.0) -> tuple[list[Lines], int]:
    """A small figure for each scalar that the script saved, and the number of further ones; arguments as of a loss."""
    made: list[Lines] = []
    more = 0
    for name in _scalar_names(run):
        if _is_ours(name):
            continue
        lines = [
            *_courses(run, "training", _scalar(run, name), COLOURS["train"], steps, smooth),
            line_of("validation", _stretch_means(run, name), COLOURS["eval"], dots=True, steps=steps),
        ]
        if len(made) == _MAX_SCALARS:
            more += 1
        elif any(len(line.x) for line in lines):
            made.append(Lines(name, Axis(), Axis(), tuple(line for line in lines if len(line.x))))
    return _aligned(run, made, steps), more


def run_figures(
    run: Run, findings: Sequence[Finding] = (), *, layers: bool = True, steps: Steps = None, smooth: float = 0.0
) -> list[tuple[str, Picture]]:
    """Every figure that the run has data for, with a caption: how to read it, which part of the run it shows.

    Args:
        run: The run.
        findings: Findings of rules, for their marks.
        layers: Also the figures of all layers, whose statistics take the most time to read.
        steps: Only these training steps, half-open.
        smooth: See :func:`loss_figure`.
    """
    models, leaders = run.models, leaders_of(run)
    first = f" Shown: {run.worker().name}, one of {len(run.workers):,} workers." if len(run.workers) > 1 else ""
    curves = first if len(leaders) == 1 else ""
    curves += f" Shown: the first {_MAX_MODELS} of {len(models):,} models." if len(models) > _MAX_MODELS else ""
    smoothing = f", and smoothed over {smooth:g} steps" if smooth else ""
    made: list[tuple[Lines | Grid | None, str]] = [
        (
            loss_figure(run, findings, steps, smooth),
            f"Loss of every training step{smoothing}, and mean loss of every evaluation." + curves,
        ),
        (accuracy_figure(run, steps, smooth), "Share of correct predictions, as recorded in the run." + curves),
        (learning_rate_figure(run, steps), "Learning rates of the optimizers, as their schedules set them." + first),
        (gradient_norm_figure(run, steps), "Norm of all gradients of a model, as its optimizer used them." + curves),
    ]
    if layers:
        made += [
            (layer_grid(run), f"{LAYER_FIELDS[GRADIENT_NORM].caption}{first}"),
            (
                update_ratio_figure(run),
                "Size of each update relative to its weight. Green: the usual range of runs that learn." + first,
            ),
        ]
    shown = [(caption, figure) for figure, caption in made if figure is not None]
    return list(
        zip([caption for caption, _ in shown], _aligned(run, [figure for _, figure in shown], steps), strict=True)
    )


def _aligned(run: Run, figures: Sequence[_Shown], within: Steps = None) -> list[_Shown]:
    """Figures of one page, with the same range of steps."""
    numbers = [numbers for worker in leaders_of(run) if len(numbers := run.worker(worker).numbers(Mode.TRAIN))]
    if not numbers:
        return list(figures)
    first, last = min(next(iter(each)) for each in numbers), max(each.last for each in numbers)
    if within is not None:
        first, last = within[0], within[1] - 1
    room = max(0.5, 0.01 * (last - first))
    low, high = first - room, last + room
    return [replace(figure, x=replace(figure.x, low=low, high=high, whole=True)) for figure in figures]


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


def _lines(run: Run, name: str, steps: Steps = None, smooth: float = 0.0) -> tuple[Line, ...]:
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
        found += _courses(run, f"{whose}training", _scalar(run, series, worker), colours[0], steps, smooth)
        found.append(
            line_of(f"{whose}validation{of}", _stretch_means(run, series, worker), colours[1], dots=True, steps=steps)
        )
    return tuple(line for line in found if len(line.x))


def _courses(run: Run, name: str, series: Series, colour: str, steps: Steps, smooth: float) -> list[Line]:
    """A series as a line; if it is smoothed, that line over the raw one."""
    raw = line_of(name, series, colour, steps=steps)
    if not smooth:
        return [raw]
    shown = line_of(name, smoothed(series, smooth, (seam.step for seam in run.seams)), colour, steps=steps)
    return [replace(raw, faint=True), replace(shown, low=None, high=None, missing=None)]


def _scalar(run: Run, name: str, worker: str | None = None) -> Series:
    if run.worker(worker).has(name):  # not every run has an accuracy
        return run.scalars(name, Mode.TRAIN, worker)
    return np.empty(0, dtype=np.int64), np.empty(0)


def _stretch_means(run: Run, name: str, worker: str | None = None) -> Series:
    """Means over the evaluation stretches, at the training steps after which they took place."""
    stretches = [stretch for stretch in run.stretches(Mode.EVAL, worker) if name in stretch.means]
    steps = np.array([max(0, stretch.train_step) for stretch in stretches], dtype=np.int64)
    return steps, np.array([stretch.means[name] for stretch in stretches], dtype=np.float64)
