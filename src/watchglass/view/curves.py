"""Curves of several runs over each other, and where two runs begin to differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.records import SEEN_ROWS, Mode, Role
from watchglass.run import step_times
from watchglass.view.courses import Courses
from watchglass.view.layer_grids import layer_names
from watchglass.view.pictures.colours import RUN_COLOURS
from watchglass.view.pictures.records import Axis, Line, Lines
from watchglass.view.series import Series, Steps, line_of

if TYPE_CHECKING:
    from watchglass.run import Run

#: How curves can be laid over each other.
BY = ("step", "time")
#: Two numbers differ if they do by more than this share: sums in another order differ by less.
_DIFFERS = 1e-5


def colour_of(run_id: str) -> str:
    """The colour of a run, by its identifier: it stays when other runs come and go."""
    return RUN_COLOURS[int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % len(RUN_COLOURS)]


def comparable(runs: Mapping[str, Run]) -> list[str]:
    """Names of the numbers that at least one run recorded of its training steps."""
    names = dict.fromkeys(
        name
        for run in runs.values()
        for role in (Role.LOSS, Role.METRIC, Role.CUSTOM)
        for name in run.tensor_names(role=role)
        if name.rpartition("/")[2] != SEEN_ROWS  # of evaluations only
    )
    return list(names)


def compared_curves(
    runs: Mapping[str, Run], metric: str = "loss", by: str = "step", steps: Steps = None
) -> Lines | None:
    """One number of several runs over their training steps, or over the time since their first; None without any.

    Args:
        runs: The runs by name.
        metric: The number.
        by: One of :data:`BY`.
        steps: Only these training steps, half-open.
    """
    lines: list[Line] = []
    used = set[str]()
    for name, run in runs.items():
        worker = run.worker()
        if not worker.has(metric) or not len((series := worker.scalars(metric))[0]):
            continue
        colour = colour_of(run.manifest.run_id)
        # Two with one colour: the later one takes the next that is free. When all are used, lines are dashed.
        if len(used) == len(RUN_COLOURS):
            used.clear()
        if colour in used:
            colour = next(each for each in RUN_COLOURS if each not in used)
        used.add(colour)
        line = replace(line_of(name, series, colour, steps=steps), dashed=len(lines) >= len(RUN_COLOURS))
        if by == "time":
            line = _over_time(run, line, series)
        lines.append(line)
    if not lines:
        return None
    values = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    spread = len(values) > 0 and values.min() > 0 and values.max() > 100 * values.min()
    axis = Axis("training step", whole=True) if by == "step" else Axis("seconds since the first step")
    return Lines(f"{metric} by {by}", axis, Axis(metric, logarithmic=bool(spread)), tuple(lines))


def _over_time(run: Run, line: Line, series: Series) -> Line:
    times = step_times(run.worker())
    train = times.rows["mode"] == Mode.TRAIN
    ended = (times.end_ns[train] - times.begin_ns[0]) / 1e9
    at = np.interp(line.x, times.rows["step"][train].astype(np.float64), ended)
    missing = line.missing
    if missing is not None and len(missing):
        missing = np.interp(missing, times.rows["step"][train].astype(np.float64), ended)
    return replace(line, x=at, missing=missing)


class Divergence(NamedTuple):
    """The first training step, and the first tensor in the order of the model, at which two runs differ."""

    step: int
    tensor: str
    values: tuple[float, float]
    steps_compared: int


def first_divergence(first: Run, second: Run, courses: Sequence[Courses] = ()) -> Divergence | None:
    """Where the norms of gradients or weights of two runs, or their losses, first differ; None where they do not.

    Args:
        first: A run.
        second: Another one.
        courses: What is known of each already.

    Raises:
        LookupError: There is nothing that both have captured at the same steps.
    """
    kept = tuple(courses) or (Courses(), Courses())
    best: Divergence | None = None
    compared = 0
    for role in (Role.WEIGHT, Role.GRADIENT):
        names = [name for name in layer_names(first, role) if second.worker().has(name)]
        if not names:
            continue
        one, other = (each.of(run, names, "l2") for each, run in zip(kept, (first, second), strict=True))
        steps, left, right = np.intersect1d(one.steps, other.steps, return_indices=True)
        compared = max(compared, len(steps))
        best = _earlier(best, steps, one.values[left], other.values[right], names)
    losses = [run.worker().scalars("loss") if run.worker().has("loss") else None for run in (first, second)]
    if losses[0] is not None and losses[1] is not None:
        steps, left, right = np.intersect1d(losses[0][0], losses[1][0], return_indices=True)
        compared = max(compared, len(steps))
        best = _earlier(best, steps, losses[0][1][left, None], losses[1][1][right, None], ["loss"])
    if not compared:
        raise LookupError("the runs have captured nothing at the same steps")
    return best._replace(steps_compared=compared) if best is not None else None


def _earlier(
    best: Divergence | None, steps: npt.NDArray[np.int64], one: npt.NDArray[np.float64],
    other: npt.NDArray[np.float64], names: Sequence[str],
) -> Divergence | None:  # fmt: skip
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other) > _DIFFERS * np.maximum(np.abs(one), np.abs(other))
    apart |= (np.isfinite(one) != np.isfinite(other)) & ~np.isnan(one) & ~np.isnan(other)
    rows = np.flatnonzero(apart.any(axis=1))
    if not len(rows) or (best is not None and best.step <= steps[rows[0]]):
        return best
    row, column = int(rows[0]), int(apart[rows[0]].argmax())
    return Divergence(int(steps[row]), names[column], (float(one[row, column]), float(other[row, column])), 0)
