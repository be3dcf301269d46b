"""One number of all layers over all steps, as one picture: gradient norms, update sizes, spread of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.errors import UnknownNameError
from watchglass.records import Mode, Role
from watchglass.view.pictures.records import Axis, Grid
from watchglass.view.series import Series

if TYPE_CHECKING:
    from watchglass.run import Run

_MAX_COLUMNS, _MAX_ROWS = 400, 150
#: The colours of logarithms span at least this many powers of ten.
_DECADES = 4.0
_EMPTY: Series = (np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True)
class LayerField:
    """What a grid of layers shows.

    Attributes:
        title: Title of the grid.
        name: In few words, for a choice of fields.
        role: Role of the tensors that are its rows.
        reduction: The statistic of these tensors.
        scale: What the colours are.
        caption: How to read it.
        relative: Whether it is divided by that of the weight, of updates.
        logarithmic: Whether colours are powers of ten; else the numbers are shares between 0 and 1.
        vectors: Whether tensors with one axis have rows although they are healthy.
    """

    title: str
    name: str
    role: Role
    reduction: str
    scale: str
    caption: str
    relative: bool = False
    logarithmic: bool = True
    vectors: bool = True


GRADIENT_NORM = "gradient.l2"
#: The fields of :func:`layer_grid`.
LAYER_FIELDS = {
    GRADIENT_NORM: LayerField(
        "Gradient norm by layer", "gradient norm", Role.GRADIENT, "l2", "log10 of the norm",
        "One row per weight matrix, the first layer at the top. Dark cells: the gradient is close to zero. "
        "Vectors, such as weights of normalisation layers, are omitted: their gradients are always small.",
        vectors=False,
    ),
    "update.ratio": LayerField(
        "Update size relative to the weight by layer", "update ratio", Role.UPDATE, "rms",
        "log10 of update / weight",
        "One row per weight, the first layer at the top. Updates of runs that learn are 1e-4 to 1e-1 of the weight.",
        relative=True,
    ),
    "weight.l2": LayerField(
        "Norm of weights by layer", "weight norm", Role.WEIGHT, "l2", "log10 of the norm",
        "One row per weight, the first layer at the top.",
    ),
    "output.std": LayerField(
        "Spread of outputs by module", "output spread", Role.OUTPUT, "std",
        "log10 of the standard deviation",
        "One row per module output, the first at the top. Dark cells: the outputs are nearly equal.",
    ),
    "output.zeros": LayerField(
        "Share of zeros in outputs by module", "zeros in outputs", Role.OUTPUT, "zero_ratio",
        "share of zeros", "One row per module output, the first at the top. Bright cells: most outputs are zero.",
        logarithmic=False,
    ),
}  # fmt: skip


def layer_grid(run: Run, field: str = GRADIENT_NORM) -> Grid | None:
    """A field of :data:`LAYER_FIELDS` over layers and steps; None when none was captured.

    The first layer is at the top. A cell with a value that is not finite has a separate colour. Gradients of vectors,
    such as those of normalisation layers, are omitted while they are finite: they have few elements, so their norms are
    small compared with those of matrices even in a healthy model.

    Raises:
        KeyError: There is no such field.
    """
    shown = LAYER_FIELDS[field]
    rows = [row for row in _rows(run, shown) if len(row.values[0])]
    rows = [row for row in rows if shown.vectors or not row.vector or row.broken] or rows
    if not rows:
        return None
    steps = _thin_columns(
        # A ratio has no value where one of its two tensors is not finite.
        np.unique(np.concatenate([each[0] for row in rows for each in (row.values, row.nonfinite)])),
        np.unique(np.concatenate([row.nonfinite[0][row.nonfinite[1] > 0] for row in rows])),
    )
    values = np.stack([_held(row.values, steps) for row in rows])
    broken = (np.stack([_held(row.nonfinite, steps) for row in rows]) > 0) | np.isinf(values)
    values[broken] = np.nan
    low, high = 0.0, 1.0
    if shown.logarithmic:
        zero = values == 0
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(zero, np.nan, np.log10(values))
        known = values[np.isfinite(values)]
        high = float(known.max()) if len(known) else 0.0
        # Only far smaller numbers are dark, because layers of a healthy model differ too.
        low = min(float(known.min()) if len(known) else high, high - _DECADES)
        values[zero] = low
    names = tuple(row.name.removeprefix(f"{shown.role.value}/") for row in rows)
    return Grid(
        shown.title, Axis("training step", whole=True), names, steps.astype(np.float64), values.astype(np.float32), low,
        high, shown.scale, broken,
    )  # fmt: skip


def layer_names(run: Run, role: Role) -> list[str]:
    """Names of the weights' tensors of a role, by model, then as the layers run; the outermost of very many."""
    infos = [run.tensor(name).info for name in run.tensor_names(role=role)]
    infos = [info for info in infos if not info.name.endswith("bias")] or infos
    infos.sort(key=lambda info: (info.model or 0, info.layer_index < 0, info.layer_index, info.tensor_id))
    return [str(name) for name in _spread(np.array([info.name for info in infos]), _MAX_ROWS)]


def reduction(run: Run, name: str, which: str) -> Series:
    """The course of a statistic; without a row where the tensor was not captured."""
    try:
        return run.tensor(name).reductions(which, Mode.TRAIN)
    except UnknownNameError:
        return np.empty(0, dtype=np.int64), np.empty(0)


def update_ratio(run: Run, weight: str) -> Series:
    """Size of each update relative to its weight, rms over rms, at the steps that have both, where it is positive."""
    return _ratio(reduction(run, f"update/{weight}", "rms"), reduction(run, weight, "rms"))


def _ratio(above: Series, below: Series) -> Series:
    steps, first, second = np.intersect1d(above[0], below[0], return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = above[1][first] / below[1][second]
    good = np.isfinite(values) & (values > 0)
    return steps[good], values[good]


class _LayerRow(NamedTuple):
    """A field of one tensor over the steps at which it was captured."""

    name: str
    vector: bool
    values: Series
    nonfinite: Series

    @property
    def broken(self) -> bool:
        return bool((self.nonfinite[1] > 0).any() or np.isinf(self.values[1]).any())


def _rows(run: Run, field: LayerField) -> list[_LayerRow]:
    names = layer_names(run, field.role)
    found = _courses(run, names, (field.reduction, "nonfinite"))
    weights = {name: name.removeprefix("update/") for name in names} if field.relative else {}
    below = _courses(run, list(weights.values()), (field.reduction,))
    rows = []
    for name in names:
        values, nonfinite = found.get(name, (_EMPTY, _EMPTY))
        if field.relative:
            values = _ratio(values, *below.get(weights[name], (_EMPTY,)))
        rows.append(_LayerRow(name, len(run.tensor(name).info.shape) == 1, values, nonfinite))
    return rows


def _courses(run: Run, names: Sequence[str], reductions: Sequence[str]) -> dict[str, tuple[Series, ...]]:
    """The courses of reductions of several tensors by name, read at once."""
    if not names:
        return {}
    table = run.statistics(names=names, fields=reductions).to_arrow()
    tensors = table["tensor"].unify_dictionaries().combine_chunks()
    which, steps = tensors.indices.to_numpy(), table["step"].to_numpy()
    order = np.lexsort((steps, which))
    known = tensors.dictionary.to_numpy(zero_copy_only=False).tolist()
    edges = np.searchsorted(which[order], np.arange(len(known) + 1))
    columns = [table[each].to_numpy().astype(np.float64) for each in reductions]
    places = [order[begin:end] for begin, end in pairwise(edges.tolist())]
    return {
        name: tuple((steps[own], column[own]) for column in columns) for name, own in zip(known, places, strict=True)
    }


def _held(series: Series, steps: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values of a series at ``steps``. NaN before its first step and after its last.

    Between two of its own steps it has the value of the earlier one: models that take turns have different steps.
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
