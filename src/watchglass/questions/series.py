"""Series of a run for programs: thinned with their extremes, and compared with those of another run."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.questions.answers import PointAnswer, SeriesAnswer, shown
from watchglass.records import Mode, Role
from watchglass.run import Run
from watchglass.tables import Selection
from watchglass.view import Pyramid

Series: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
#: Ratio by which two numbers must differ, and most tensors that are compared.
_DIFFERENT, _COMPARED = 0.01, 300
#: Most points of a series.
_POINTS = 200


#: What is read of a tensor where nothing else is asked for.
STATISTIC = "l2"


def read_series(
    run: Run,
    name: str,
    *,
    listed_by: str,
    statistic: str = "",
    mode: str = "train",
    first: int = 0,
    last: int | None = None,
    points: int = 40,
) -> SeriesAnswer:
    """A scalar, or a number of a tensor, over training steps, thinned; its ``run`` is the run's location.

    Args:
        run: The run.
        name: A scalar such as ``"loss"``, or a tensor.
        listed_by: What lists the names, for who gives another one: ``"find_names lists them"``.
        statistic: Of a tensor; :data:`STATISTIC` if "". A scalar has none.
        mode: ``"train"``, or ``"eval"`` for the mean of each evaluation, at the training step before it.
        first: The first step.
        last: The last step; None for the newest.
        points: Most points, 2 to 200.

    Raises:
        UnknownNameError: There is no such name.
        InvalidValueError: Another mode or statistic, or ``last`` is below ``first``.
    """
    info = run.worker().infos().get(name)
    if info is None:
        near = suggest(name, list(run.worker().infos()))
        raise UnknownNameError(f"{run.location} has no scalar or tensor {name!r:.200}{near}; {listed_by}")
    if mode.lower() not in ("train", "eval"):
        raise InvalidValueError(f'mode must be "train" or "eval" but got {mode!r:.100}')
    is_scalar = info.role in (Role.LOSS, Role.METRIC)
    if is_scalar and statistic:
        raise InvalidValueError(f"{name} is a scalar, which has no statistic; omit {statistic!r:.100}")
    if not is_scalar:
        name, series = f"{name} {statistic or STATISTIC}", run.tensor(name).reductions(statistic or STATISTIC, mode)
    elif mode.lower() == "eval":
        series = _of_evaluations(run, name, listed_by)
    else:
        series = run.scalars(name)
    return _thinned(run.location, name, mode.lower(), series, first, last, max(2, min(points, _POINTS)))


def _of_evaluations(run: Run, name: str, listed_by: str) -> Series:
    stretches = [each for each in run.stretches(Mode.EVAL) if name in each.means]
    if not stretches:
        raise UnknownNameError(f"no evaluation of {run.location} has {name!r:.200}; {listed_by}")
    steps = np.array([max(each.train_step, 0) for each in stretches], np.int64)
    return steps, np.array([each.means[name] for each in stretches])


def _thinned(run: str, name: str, mode: str, series: Series, first: int, last: int | None, points: int) -> SeriesAnswer:
    """Part of a series in buckets of equally many steps."""
    steps, values = series
    end = int(steps[-1]) if last is None and len(steps) else (last if last is not None else -1)
    if last is not None and last < first:
        raise InvalidValueError(f"last must be at least first, {first}, but got {last}")
    chosen = (steps >= first) & (steps <= end)
    steps, values = steps[chosen], values[chosen]
    if not len(steps):
        return SeriesAnswer(run, name, mode, None, None, 0, [])
    pyramid = Pyramid()
    pyramid.append(steps, values)
    found = [
        PointAnswer(
            int(row["step"]),
            shown(float(row["last"])),
            shown(float(row["low"])),
            shown(float(row["high"])),
            int(row["broken"]),
        )
        for row in pyramid.within(int(steps[0]), int(steps[-1]), max(points // 2, 1))
    ]
    return SeriesAnswer(run, name, mode, int(steps[0]), int(steps[-1]), len(steps), found)


def last_values(run: Run) -> dict[str, str]:
    """The last value of each scalar of training, and of each in the last evaluation, with its step."""
    found: dict[str, str] = {}
    for name, info in run.worker().infos().items():
        if info.role in (Role.LOSS, Role.METRIC):
            steps, values = run.scalars(name)
            if len(steps):
                found[name] = f"{shown(float(values[-1]))} at step {steps[-1]}"
    for stretch in run.stretches(Mode.EVAL)[-1:]:
        found |= {
            f"eval {name}": f"{shown(value)} at step {stretch.train_step}" for name, value in stretch.means.items()
        }
    return found


def first_difference(run: Run, other: Run) -> tuple[int | None, str]:
    """The first common training step at which a scalar or the norm of a tensor differs by more than one percent.

    Returns:
        The step and the name; None and "" where there is none.
    """
    found: tuple[int | None, str] = (None, "")
    matches = Selection().matcher()
    theirs = other.worker().infos()
    names = [info for name, info in run.worker().infos().items() if name in theirs and matches(info)]
    scalars = [info.name for info in names if info.role in (Role.LOSS, Role.METRIC)]
    tensors = [info.name for info in names if info.role not in (Role.LOSS, Role.METRIC)][:_COMPARED]
    pairs = [(name, run.scalars(name), other.scalars(name)) for name in scalars]
    pairs += [
        (f"{name} l2", run.tensor(name).reductions("l2"), other.tensor(name).reductions("l2")) for name in tensors
    ]
    for name, mine, others in pairs:
        steps, at, also = np.intersect1d(mine[0], others[0], return_indices=True)
        a, b = mine[1][at], others[1][also]
        with np.errstate(invalid="ignore"):
            same = (
                (np.abs(a - b) <= _DIFFERENT * np.maximum(np.abs(a), np.abs(b)))
                | (a == b)
                | (np.isnan(a) & np.isnan(b))
            )
        differing = np.flatnonzero(~same)
        if len(differing) and (found[0] is None or int(steps[differing[0]]) < found[0]):
            found = int(steps[differing[0]]), name
    return found
