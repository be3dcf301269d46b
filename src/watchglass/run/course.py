"""The complete steps of one worker that count, over all attempts, with the numbers that they have in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Mode, StepEnd
from watchglass.run.lineage import Lineage, Part
from watchglass.run.steps import Place
from watchglass.run.tables import WorkerTables

Column = NDArray[np.int64]

#: The modes that steps are recorded in.
STORED_MODES = (Mode.TRAIN, Mode.EVAL, Mode.PREDICT)


@dataclass(frozen=True, eq=False)
class Course:
    """Steps in the order of training, n of them; columns, for there may be a million.

    Attributes:
        attempt: The attempt that recorded each, int64[n].
        own: Its global step in that attempt, int64[n].
        mode: Its mode, int64[n].
        step: Its number among those of its mode, in the run, int64[n].
        train_step: The TRAIN step that it is or follows, in the run, int64[n]; -1 for none.
        number: Its number over all modes, in the run, int64[n].
        model: The model that leads it, int64[n].
    """

    attempt: Column
    own: Column
    mode: Column
    step: Column
    train_step: Column
    number: Column
    model: Column

    def __len__(self) -> int:
        return len(self.own)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Course:
        """Some of the rows, by index or mask."""
        return Course(*(column[rows] for column in vars(self).values()))

    def rows(self, attempts: Mapping[int, WorkerTables]) -> Iterator[tuple[StepEnd, Place]]:
        """Each step as it ended, numbered as a step of the run, and where it was recorded."""
        for attempt, own, _, step, train_step, number, _ in zip(
            *(column.tolist() for column in vars(self).values()), strict=True
        ):
            end = attempts[attempt].steps[own]
            if (end.mode_step, end.train_step, end.global_step) != (step, train_step, number):
                end = replace(end, mode_step=step, train_step=train_step, global_step=number)
            yield end, Place(attempt, own)


def counting(attempts: Mapping[int, WorkerTables], lineage: Lineage | None) -> dict[int, WorkerTables]:
    """The attempts of which something counts, oldest first; of a run without TRAIN steps the newest with any.

    Args:
        attempts: One worker's tables by attempt, oldest first.
        lineage: Which steps count; all of them if None.
    """
    if lineage is None:
        return dict(attempts)
    parts = [part.attempt for part in lineage.parts if part.attempt in attempts]
    if not parts:
        parts = [attempt for attempt, tables in attempts.items() if tables.steps][-1:]
    return {attempt: attempts[attempt] for attempt in parts}


def course_of(attempts: Mapping[int, WorkerTables], lineage: Lineage | None, steps: tuple[int, int] | None) -> Course:
    """The steps that count.

    Args:
        attempts: One worker's tables by attempt, oldest first.
        lineage: Which steps count; all of them if None.
        steps: Leave out other TRAIN steps than these, half-open, and what belongs to them.
    """
    found = [Course(*(np.empty(0, np.int64) for _ in range(7)))]
    behind = 0
    for attempt in counting(attempts, lineage):
        kept = _kept(attempts, attempt, lineage)
        if steps is not None:
            kept = kept.take((steps[0] <= kept.train_step) & (kept.train_step < steps[1]))
        if not len(kept):
            continue
        shift = max(0, behind - int(kept.own.min()))
        kept = replace(kept, number=kept.own + shift)
        behind = int(kept.number.max()) + 1
        # As `StepEnd.order`, whatever order the steps arrived in; TRAIN is the least mode.
        found.append(kept.take(np.lexsort((kept.step, kept.mode, kept.train_step))))
    return Course(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in found), strict=True)))


def _kept(attempts: Mapping[int, WorkerTables], attempt: int, lineage: Lineage | None) -> Course:
    """Steps of an attempt that count, with the mode steps of the run."""
    ends = attempts[attempt].steps.values()
    own, mode, step, train_step, model = (
        np.fromiter(map(attrgetter(name), ends), np.int64, len(ends))
        for name in ("global_step", "mode", "mode_step", "train_step", "model")
    )
    rows = Course(np.full(len(own), attempt, np.int64), own, mode, step, train_step, own, model)
    if lineage is None or not lineage.parts:
        return rows
    parts = {
        each: next((part for part in lineage.of(each, attempts) if part.attempt == attempt), None)
        for each in STORED_MODES
    }
    train = parts[Mode.TRAIN]
    if train is None:
        return rows.take(np.zeros(len(rows), bool))
    # Before its first update an attempt that was resumed stands behind the last one before it.
    rows = replace(rows, train_step=np.where(train_step >= 0, train_step + train.shift, train.start - 1))
    counts = np.zeros(len(rows), bool)
    for each, part in parts.items():
        if part is not None:
            chosen = mode == each
            rows.step[chosen] += part.shift
            counts |= chosen & _within(rows.step, part)
    return rows.take(counts)


def _within(steps: Column, part: Part) -> NDArray[np.bool_]:
    return (steps >= part.start) & (True if part.stop is None else steps < part.stop)
