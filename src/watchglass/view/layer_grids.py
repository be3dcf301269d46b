"""One number of all layers over all steps, as one picture: gradient norms, update sizes, spread of outputs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import INACTIVE_UNITS, Finding, Mode, Role
from watchglass.view.courses import INACTIVE, Courses, TensorCourse
from watchglass.view.pictures.records import Axis, Grid, GridBox
from watchglass.view.series import Series, Steps

if TYPE_CHECKING:
    from watchglass.run import Run

_MAX_COLUMNS, _MAX_ROWS = 640, 150
#: Most tensors that joined rows stand for.
_MAX_JOINED = 600
#: What the colours of a grid against its own medians are, of shares and of logarithms.
_RELATIVE = ("difference from the row's median", "log10 of the cell / the row's median")
#: Most outlined findings.
_BOXES = 200
#: The colours of logarithms span at least this many powers of ten.
_DECADES = 4.0


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
        greatest: Whether a row of several tensors shows the greatest of their numbers; else the smallest.
        collection: The collection that records it; "" for that of the role.
        missing: What else may be the reason that there is nothing, as a clause; "" for nothing.
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
    greatest: bool = True
    collection: str = ""
    missing: str = ""

    @property
    def tensor_prefix(self) -> str:
        """What the names of its tensors have before those of its rows."""
        return f"{self.role.value}/" if self.role in (Role.GRADIENT, Role.UPDATE) else ""


GRADIENT_NORM = "gradient.l2"
#: The fields of :func:`layer_grid`.
LAYER_FIELDS = {
    GRADIENT_NORM: LayerField(
        "Gradient norm by layer", "gradient norm", Role.GRADIENT, "l2", "log10 of the norm",
        "One row per weight matrix, the first layer at the top. Dark cells: the gradient is close to zero. "
        "Vectors, such as weights of normalisation layers, are omitted: their gradients are always small.",
        vectors=False, greatest=False,
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
        greatest=False,
    ),
    "output.zeros": LayerField(
        "Share of zeros in outputs by module", "zeros in outputs", Role.OUTPUT, "zero_ratio",
        "share of zeros", "One row per module output, the first at the top. Bright cells: most outputs are zero.",
        logarithmic=False,
    ),
    "output.inactive": LayerField(
        "Share of inactive units by layer", "dead units", Role.OUTPUT, INACTIVE, "share of units that were zero",
        "One row per ReLU, the first at the top. Bright cells: most units were zero for all samples of the step. Units "
        "that stay so are dead; in small batches some are zero by chance.",
        logarithmic=False, collection="relu_output", missing="a model without ReLU has none",
    ),
}  # fmt: skip


def layer_grid(
    run: Run,
    field: str = GRADIENT_NORM,
    courses: Courses | None = None,
    steps: Steps = None,
    *,
    relative: bool = False,
    findings: Iterable[Finding] = (),
    depth: int | None = None,
    within: str = "",
    opened: Collection[str] = (),
) -> Grid | None:
    """A field of :data:`LAYER_FIELDS` over layers and steps; None when none was captured.

    The first layer is at the top. A cell with a value that is not finite has a separate colour. Gradients of vectors,
    such as those of normalisation layers, are omitted while they are finite: they have few elements, so their norms are
    small compared with those of matrices even in a healthy model. A column of a long run stands for 2^k steps: its
    cells have the number that is farthest from what is usual for their row.

    Args:
        run: The run.
        field: The field.
        courses: What is known of the run already; it is continued.
        steps: Only these training steps, half-open.
        relative: Whether a cell is divided by the median of its row: what changed, instead of how large it is.
        findings: Their tensors are outlined at their steps.
        depth: Tensors whose modules agree in so many names of their paths share a row, see :func:`joined_sentence`;
            None for a row for each tensor.
        within: Only the tensors of this module and of those in it; "" for all.
        opened: Modules whose tensors do not share one row at this depth: what is in them has rows, and may be opened.

    Raises:
        InvalidValueError: The depth is below 1.
        KeyError: There is no such field.
        UnknownNameError: No such tensor is within this module.
    """
    shown = LAYER_FIELDS[field]
    if depth is not None and depth < 1:
        raise InvalidValueError(f"depth must be a whole number from 1 on but got {depth!r}")
    there = _in_order(run, _recorded(run, shown), shown.role, within)
    names = _some(there, joined=depth is not None)
    at, values = _course(run, names, shown, courses or Courses())
    if steps is not None:
        part = slice(*np.searchsorted(at, steps).tolist())
        at, values = at[part], values[part]
    rows = np.flatnonzero(~np.isnan(values).all(axis=0))
    matrices = [row for row in rows if shown.vectors or len(run.tensor(names[row]).info.shape) != 1]
    rows = np.array(sorted({*matrices, *rows[np.isinf(values[:, rows]).any(axis=0)]}) or rows, np.int64)
    if not len(rows):
        return None
    values = values[:, rows]
    if len(rows) < len(names):
        shows = ~np.isnan(values).all(axis=1)
        at, values = at[shows], values[shows]
    at, cells = _columns(at, values, logarithmic=shown.logarithmic)
    cells = _held(cells)
    broken = np.isinf(cells) & (cells > 0)
    cells[broken] = np.nan
    low, high, title, scale = 0.0, 1.0, shown.title, shown.scale
    if relative:
        title, scale = f"{title}, against its own median", _RELATIVE[shown.logarithmic]
        cells, low, high = _against_median(cells)
    elif shown.logarithmic:
        known = cells[np.isfinite(cells)]
        high = float(known.max()) if len(known) else 0.0
        # Only far smaller numbers are dark, because layers of a healthy model differ too.
        low = min(float(known.min()) if len(known) else high, high - _DECADES)
        cells[np.isneginf(cells)] = low
    if len(names) < len(there):
        title += f"; {len(names):,} of {len(there):,} tensors, spread over the model"
    groups = _groups([names[row] for row in rows], shown, depth, opened)
    if depth is not None:
        cells, broken = _joined(cells, broken, [group.members for group in groups], shown, relative=relative)
    return Grid(
        title, Axis("training step", whole=True), tuple(group.name for group in groups),
        at.astype(np.float64), np.ascontiguousarray(cells.T, np.float32), low, high, scale,
        np.ascontiguousarray(broken.T), _boxes(findings, [group.tensors for group in groups], at), tree=True,
    )  # fmt: skip


class _Group(NamedTuple):
    """What has one row: its name, its tensors, and their places among all."""

    name: str
    tensors: list[str]
    members: list[int]


def _groups(names: Sequence[str], field: LayerField, depth: int | None, opened: Collection[str]) -> list[_Group]:
    """The rows of tensors, in their order; a module with one tensor keeps the name of that."""
    prefix = f"{field.role.value}/"
    found: dict[str, _Group] = {}
    for place, name in enumerate(names):
        own = name.removeprefix(prefix)
        group = found.setdefault(_ancestor(own, depth, opened), _Group(own, [], []))
        group.tensors.append(name)
        group.members.append(place)
    return [group._replace(name=ancestor) if len(group.tensors) > 1 else group for ancestor, group in found.items()]


def _ancestor(name: str, depth: int | None, opened: Collection[str] = ()) -> str:
    """The module of a tensor at a depth of the tree, or below it while that is open.

    The tensor itself where it has no such module, or without a depth.
    """
    module, _, _ = name.rpartition(".")
    if not module or depth is None:
        return name
    parts = module.split(".")
    paths = (".".join(parts[:level]) for level in range(min(depth, len(parts)), len(parts) + 1))
    return next((path for path in paths if path not in opened), name)


def _joined(
    cells: npt.NDArray[np.float64], broken: npt.NDArray[np.bool_], groups: Sequence[list[int]], field: LayerField, *,
    relative: bool,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:  # fmt: skip
    """Cells of columns and groups, see :func:`joined_sentence`, and which are not finite."""

    def worst(own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if not relative:
            return np.asarray((np.fmax if field.greatest else np.fmin).reduce(own, axis=1))
        far = np.where(np.isnan(own), -1.0, np.abs(own)).argmax(axis=1)
        return np.take_along_axis(own, far[:, None], axis=1)[:, 0]

    bad = np.stack([broken[:, group].any(axis=1) for group in groups], axis=1)
    found = np.stack([worst(cells[:, group]) for group in groups], axis=1)
    found[bad] = np.nan
    return found, bad


def joined_sentence(field: LayerField, *, relative: bool) -> str:
    """What a row of several tensors shows, for the caption of a grid with a depth."""
    if relative:
        which = "that of the tensor farthest from its own median"
    else:
        which = f"the {'greatest' if field.greatest else 'smallest'} of its tensors"
    return f"Here the rows of each module are joined: a cell is {which}, or not finite if any of them is."


def layer_depths(run: Run, field: LayerField, within: str = "") -> list[int]:
    """The depths of the tree of modules at which some tensors of a field share a row, but not all."""
    known = _some(_in_order(run, _recorded(run, field), field.role, within), joined=True)
    names = [name.removeprefix(f"{field.role.value}/") for name in known]
    found: dict[int, int] = {}  # of each number of rows the least depth
    for depth in range(1, max((name.count(".") for name in names), default=0) + 1):
        rows = len({_ancestor(name, depth) for name in names})
        if 1 < rows < len(names):
            found.setdefault(rows, depth)
    return list(found.values())


def _against_median(cells: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float, float]:
    """Differences of columns of rows from the median of the row, and the ends of their colours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without any number, or with zeros
        median = np.nanmedian(cells, axis=0)
        apart = np.where(cells == median, 0.0, cells - median)  # of a row of zeros the median is one of them
    known = np.abs(apart[np.isfinite(apart)])
    reach = max(float(np.percentile(known, 99)) if len(known) else 0.0, 0.3)
    return np.where(np.isinf(apart), np.copysign(reach, apart), apart), -reach, reach


def _boxes(
    findings: Iterable[Finding], rows: Sequence[Sequence[str]], at: npt.NDArray[np.int64]
) -> tuple[GridBox, ...]:
    """The steps of findings about the tensors of the rows of a grid."""
    places = {name: row for row, names in enumerate(rows) for name in names}
    found: list[GridBox] = []
    for finding in findings:
        if finding.mode is Mode.TRAIN and finding.last_step >= at[0] and finding.step <= at[-1]:
            text = f"{finding.rule}: {finding.message}"
            begin, end = max(finding.step, int(at[0])) - 0.5, min(finding.last_step, int(at[-1])) + 0.5
            about = dict.fromkeys(places[name] for name in finding.tensors if name in places)
            found += (GridBox(row, begin, end, text, finding.severity.value) for row in about)
    return tuple(found[:_BOXES])


def layer_names(run: Run, role: Role) -> list[str]:
    """Names of the weights' tensors of a role, by model, then as the layers run; some of very many."""
    return _some(_in_order(run, run.tensor_names(role=role), role, ""), joined=False)


def _recorded(run: Run, field: LayerField) -> list[str]:
    """Names of the tensors that have the number of a field."""
    if field.reduction != INACTIVE:
        return run.tensor_names(role=field.role)
    names = run.worker().names_having(INACTIVE_UNITS)
    # Where ReLU is a function, they are of the inputs of the layers behind it.
    return [name for name in names if run.tensor(name).info.role is field.role] or list(names)


def _in_order(run: Run, known: Sequence[str], role: Role, within: str) -> list[str]:
    chosen = [name for name in known if not within or name.removeprefix(f"{role.value}/").startswith(f"{within}.")]
    if known and not chosen:
        raise UnknownNameError(f"{run.location} has no {role.value} within a module {within!r:.200}")
    infos = [run.tensor(name).info for name in chosen]
    infos = [info for info in infos if not info.name.endswith("bias")] or infos
    infos.sort(key=lambda info: (info.model or 0, info.layer_index < 0, info.layer_index, info.tensor_id))
    return [info.name for info in infos]


def _some(names: Sequence[str], *, joined: bool) -> list[str]:
    """Those that are shown of many; more of them where several share a row."""
    return [str(name) for name in _spread(np.array(names), _MAX_JOINED if joined else _MAX_ROWS)]


def reduction(run: Run, name: str, which: str) -> Series:
    """The course of a statistic; without a row where the tensor was not captured."""
    try:
        return run.tensor(name).reductions(which, Mode.TRAIN)
    except UnknownNameError:
        return np.empty(0, dtype=np.int64), np.empty(0)


def update_ratio(run: Run, weight: str) -> Series:
    """Size of each update relative to its weight, rms over rms, at the steps that have both, where it is positive."""
    above, below = reduction(run, f"update/{weight}", "rms"), reduction(run, weight, "rms")
    steps, first, second = np.intersect1d(above[0], below[0], return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = above[1][first] / below[1][second]
    good = np.isfinite(values) & (values > 0)
    return steps[good], values[good]


def _course(run: Run, names: Sequence[str], field: LayerField, courses: Courses) -> TensorCourse:
    """The numbers of a field: infinite where they are not finite, NaN where there are none."""
    found = courses.of(run, names, field.reduction)
    if not field.relative or not len(found.steps):
        return found
    below = courses.of(run, [name.removeprefix(f"{field.role.value}/") for name in names], field.reduction)
    steps, above, weights = found.steps, found.values, below.values
    if not np.array_equal(steps, below.steps):
        steps, first, second = np.intersect1d(steps, below.steps, return_indices=True)
        above, weights = above[first], weights[second]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / weights
    # A ratio has no value where the weight is not finite; what is not finite of the update is shown at any step.
    ratios[~(np.isfinite(ratios) & (ratios > 0))] = np.nan
    ratios[np.isinf(above)] = np.inf
    return TensorCourse(steps, ratios)


def _columns(
    steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64], *, logarithmic: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Columns of the steps that agree without their last bits, and of each the number farthest from the usual."""
    level = 0
    while (
        len(steps)
        and (int(steps[-1]) >> level) - (int(steps[0]) >> level) >= _MAX_COLUMNS
        and (len(np.unique(steps >> level)) > _MAX_COLUMNS)
    ):
        level += 1
    places = steps >> level
    begins = np.flatnonzero(np.diff(places, prepend=places[0] - 1))
    low, high = np.fmin.reduceat(values, begins), np.fmax.reduceat(values, begins)
    if logarithmic:
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = np.log10(low), np.log10(high)
    ends = np.append(begins[1:], len(steps)) - 1
    if level == 0:
        return steps, high
    known = np.where(np.isfinite(low) & np.isfinite(high), low + high, np.nan) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without any number
        usual = np.nanmedian(known, axis=0)
    far = np.isinf(high) | ~(usual - low > high - usual)
    return steps[ends], np.where(far, high, low)


def _held(cells: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Cells without a number between two that have one get the earlier one: models that take turns have different
    steps.
    """  # noqa: D205
    known = ~np.isnan(cells)
    if known.all():
        return cells
    number = np.arange(len(cells))[:, None]
    last = np.maximum.accumulate(np.where(known, number, -1))
    inside = (last >= 0) & (number <= last[-1])
    return np.where(inside, np.take_along_axis(cells, np.maximum(last, 0), axis=0), np.nan)


def _spread(values: npt.NDArray[Any], limit: int) -> npt.NDArray[Any]:
    """At most ``limit`` of the values, the first and the last among them."""
    if len(values) > limit:
        values = values[np.unique(np.linspace(0, len(values) - 1, limit).round().astype(int))]
    return values
