"""Many workers side by side: one number of each over the steps, those that differ most first."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.records import Mode
from watchglass.view.pictures.colours import COLOURS
from watchglass.view.pictures.records import Axis, Grid, Line, Lines
from watchglass.view.pictures.tables import Inline, Span, TextTable
from watchglass.view.series import Steps
from watchglass.view.text import exact_duration, number

if TYPE_CHECKING:
    from watchglass.run import Run

#: Rows of the grid, columns of it, and rows of the table.
_ROWS, _COLUMNS, _WORST = 64, 320, 16
#: What is compared, by name: title and unit.
WORKER_FIELDS = {"step": ("step time", "seconds"), "loss": ("loss", ""), "gradient_norm": ("gradient norm", "")}


class Workers(NamedTuple):
    """Workers compared: all together, those that differ most as a grid, and in words."""

    everyone: Lines
    worst: Grid
    table: TextTable


def compared_workers(run: Run, field: str = "step", steps: Steps = None) -> Workers | None:
    """Step times, losses or gradient norms of all workers; None where fewer than two recorded them.

    A worker differs by how far its median is from that of all, relative to it.

    Args:
        run: The run.
        field: One of :data:`WORKER_FIELDS`.
        steps: Only these training steps, half-open.

    Raises:
        KeyError: There is no such field.
    """
    title, unit = WORKER_FIELDS[field]
    found = {name: series for name in run.workers if len((series := _series(run, name, field, steps))[0])}
    if len(found) < 2:
        return None
    known = np.unique(np.concatenate([at for at, _ in found.values()]))
    level = 0
    while len(np.unique(known >> level)) > _COLUMNS:
        level += 1
    columns = np.unique(known >> level)
    cells = np.full((len(found), len(columns)), np.nan)
    for row, (at, values) in enumerate(found.values()):
        places = np.searchsorted(columns, at >> level)
        begins = np.flatnonzero(np.diff(places, prepend=-1))
        # Of several steps in a column the greatest: what is slow or large is looked for.
        cells[row, places[begins]] = np.maximum.reduceat(values, begins)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of workers without a finite number
        medians = np.array([np.nanmedian(values) for _, values in found.values()])
        finite = np.where(np.isfinite(cells), cells, np.nan)
        low, middle, high = (each(finite, axis=0) for each in (np.nanmin, np.nanmedian, np.nanmax))
        usual = float(np.nanmedian(medians))
    away = np.abs(medians - usual) / max(abs(usual), 1e-30)
    broken = np.array([not np.isfinite(values).all() for _, values in found.values()])
    order = np.lexsort((-np.nan_to_num(away), ~broken))
    names = list(found)
    at = ((columns + 1) << level) - 1 if level else columns
    x = Axis("training step", whole=True)
    everyone = Lines(
        f"{title.capitalize()} of {len(names):,} workers", x, Axis(unit),
        (Line("median, least to greatest", at.astype(np.float64), middle, COLOURS["train"], low=low, high=high),),
    )  # fmt: skip
    worst = order[:_ROWS].tolist()
    grid = _grid(cells[worst], [names[row] for row in worst], at, title, unit)
    head = ("worker", f"median {title}", "of all", "difference", "greatest")
    rows = [_row(names[row], medians[row], usual, found[names[row]][1], unit) for row in worst[:_WORST]]
    return Workers(everyone, grid, TextTable(head, rows))


def _series(run: Run, name: str, field: str, steps: Steps) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    worker = run.worker(name)
    if field == "step":
        rows = worker.columns[worker.columns["mode"] == Mode.TRAIN]
        ends = worker.ends(rows)
        at = rows["step"].astype(np.int64)
        values = (ends["end_ns"].astype(np.int64) - ends["start_ns"].astype(np.int64)) / 1e9
    elif worker.has(field):
        at, values = worker.scalars(field)
    else:
        return np.empty(0, np.int64), np.empty(0)
    if steps is not None:
        part = slice(*np.searchsorted(at, steps).tolist())
        at, values = at[part], values[part]
    return at, values


def _grid(cells: npt.NDArray[np.float64], names: list[str], at: npt.NDArray[np.int64], title: str, unit: str) -> Grid:
    broken = np.isinf(cells)
    known = cells[np.isfinite(cells)]
    # One event of one worker must not make all others look alike.
    low, high = np.percentile(known, (1, 99)).tolist() if len(known) else (0.0, 1.0)
    scale = f"{title}{f' in {unit}' if unit else ''}"
    shown = np.where(broken, np.nan, cells).astype(np.float32)
    heading = f"{title.capitalize()} by worker, those that differ most first"
    x = Axis("training step", whole=True)
    return Grid(heading, x, tuple(names), at.astype(np.float64), shown, low, max(high, low + 1e-12), scale, broken)


def _row(name: str, median: float, usual: float, values: npt.NDArray[np.float64], unit: str) -> tuple[Inline, ...]:
    def said(value: float) -> str:
        return exact_duration(value) if unit == "seconds" and np.isfinite(value) else number(value)

    change = (median - usual) / abs(usual) if usual else 0.0
    greatest = float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")
    return Span(name, "code"), said(median), said(usual), f"{100 * change:+.1f} %", said(greatest)
