"""The complete steps of one worker that count, over all attempts, with the numbers that they have in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Mode
from watchglass.run.numbering.lineage import Lineage, StepRange
from watchglass.tables import RowLog, WorkerTables, last_index_of_each

#: The modes that steps are recorded in.
STORED_MODES = (Mode.TRAIN, Mode.EVAL, Mode.PREDICT)
#: A step of the course: its number and the last TRAIN step, both in the run; the attempt that recorded it, and its
#: global step there; its number over all modes, in the run.
COURSE = np.dtype(
    [("train_step", "i8"), ("mode", "i4"), ("step", "i8"), ("attempt", "i4"), ("own", "u8"), ("number", "i8"),
     ("model", "i4")]
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Course:
    """Steps in the order of training, as columns, since there may be a million. Never changes."""

    log: RowLog  #: Rows of :data:`COURSE`.
    same: int  #: The number of first rows in common with the course that this one continues; 0 for none.
    _parts: tuple[StepRange, ...]
    _read: Mapping[int, RowLog]
    _newest: _NewestAttempt | None

    @property
    def rows(self) -> NDArray[Any]:
        """The steps."""
        return self.log.rows

    @property
    def last_train_step(self) -> int:
        """Index of the first row of those that follow the last TRAIN step."""
        steps, begin = self.rows["train_step"], self._newest.begin if self._newest is not None else 0
        return begin + int(np.searchsorted(steps[begin:], steps[-1])) if len(steps) else 0

    def continued(
        self, read: Mapping[int, RowLog], parts: tuple[StepRange, ...], steps: tuple[int, int] | None
    ) -> Course | None:
        """The same course with the new steps of its newest attempt; None where more than that changed.

        Args:
            read: The steps of each attempt.
            parts: The TRAIN steps that count.
            steps: As of :func:`course_of`.
        """
        newest = self._newest
        if newest is None or parts != self._parts or list(read) != list(self._read):
            return None
        known, now = self._read[newest.number], read[newest.number]
        others = [attempt for attempt in read if attempt != newest.number and read[attempt] is not self._read[attempt]]
        if others or now.origin is not known.origin:
            return None
        new = now.rows[len(known) :]
        if not len(new):
            return Course(self.log, len(self.log), self._parts, read, newest)
        if any(part is not None and part.stop is not None for part in newest.parts.values()):
            return None  # its end may depend on the new steps
        # Where a step came twice, the last one counts.
        new = new[last_index_of_each(new["global_step"])]
        kept = _kept(new, newest.number, newest.parts, steps)
        if len(kept) and int(kept["own"].min()) < newest.least:
            return None
        kept["number"] += newest.shift
        rows = self.rows[newest.begin :]
        again = np.empty(0, np.intp)
        if int(new["global_step"][0]) <= newest.greatest:
            again = np.flatnonzero(np.isin(rows["own"], new["global_step"]))
            if not np.isin(rows["own"][again], kept["own"]).all():
                return None
        # From here on rows may need sorting: steps end in another order than they begin.
        first = min([*kept["train_step"].tolist(), *rows["train_step"][again].tolist()], default=None)
        begin = newest.begin + (len(rows) if first is None else int(np.searchsorted(rows["train_step"], first)))
        old = self.rows[begin:]
        tail = _sorted(np.concatenate([old[~np.isin(old["own"], new["global_step"])], kept]))
        shared = min(len(old), len(tail))
        moved = np.flatnonzero(old[:shared] != tail[:shared])
        same = int(moved[0]) if len(moved) else shared
        log = self.log.first(begin + same).and_then(tail[same:])
        greatest = max(newest.greatest, int(new["global_step"][-1]))
        return Course(log, begin + same, self._parts, read, replace(newest, greatest=greatest))


@dataclass(frozen=True)
class _NewestAttempt:
    """The newest attempt of a course, up to what was read of it."""

    number: int  #: Its number.
    parts: Mapping[Mode, StepRange | None]  #: Its steps that count, by mode.
    begin: int  #: Index of its first row.
    least: int  #: The least of its global steps that count.
    greatest: int  #: The greatest known one.
    shift: int  #: The number added to its global steps.


def counting(attempts: Mapping[int, WorkerTables], lineage: Lineage | None) -> dict[int, WorkerTables]:
    """The attempts with steps that count, oldest first; in a run without TRAIN steps the newest attempt with steps.

    Args:
        attempts: One worker's tables by attempt, oldest first.
        lineage: The steps that count; all of them if None.
    """
    if lineage is None:
        return dict(attempts)
    parts = [part.attempt for part in lineage.parts if part.attempt in attempts]
    if not parts:
        parts = [attempt for attempt, tables in attempts.items() if len(tables.steps.log)][-1:]
    return {attempt: attempts[attempt] for attempt in parts}


def course_of(
    attempts: Mapping[int, WorkerTables],
    lineage: Lineage | None,
    steps: tuple[int, int] | None,
    before: Course | None = None,
) -> Course:
    """The steps that count.

    Args:
        attempts: One worker's tables by attempt, oldest first.
        lineage: The steps that count; all of them if None.
        steps: Only these TRAIN steps, half-open, and the evaluations after them.
        before: An earlier result; only new steps are read where nothing else changed.
    """
    parts = lineage.parts if lineage is not None else ()
    read = {attempt: tables.steps.log for attempt, tables in attempts.items()}
    continued = before.continued(read, parts, steps) if before is not None else None
    if continued is not None:
        return continued
    log, behind, newest = RowLog(COURSE, "number"), 0, None
    for attempt in counting(attempts, lineage):
        modes = {
            mode: next((part for part in lineage.of(mode, attempts) if part.attempt == attempt), None)
            for mode in STORED_MODES
        } if lineage is not None and parts else {}  # fmt: skip
        kept = _kept(read[attempt].latest, attempt, modes, steps)
        if not len(kept):
            newest = None
            continue
        least = int(kept["own"].min())
        newest = _NewestAttempt(
            attempt, modes, len(log), least, int(read[attempt].rows["global_step"].max()), max(0, behind - least)
        )
        kept["number"] += newest.shift
        behind = int(kept["number"].max()) + 1
        log = log.and_then(_sorted(kept))
    return Course(log, 0, parts, read, newest)


def _sorted(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows in the order of `StepEnd.order`, whose least mode is TRAIN, and not of arrival."""
    return rows[np.lexsort((rows["step"], rows["mode"], rows["train_step"]))]


def _kept(
    ends: NDArray[Any], attempt: int, parts: Mapping[Mode, StepRange | None], steps: tuple[int, int] | None
) -> NDArray[Any]:
    """Steps of an attempt that count, with the mode steps of the run.

    Args:
        ends: Rows of :data:`~watchglass.records.STEPS`, one for each step.
        attempt: Its number.
        parts: Its steps that count, by mode; all of them where this is empty.
        steps: As of :func:`course_of`.
    """
    rows = np.empty(len(ends), COURSE)
    rows["attempt"], rows["own"], rows["number"] = attempt, ends["global_step"], ends["global_step"]
    rows["step"] = ends["mode_step"]
    for name in ("mode", "train_step", "model"):
        rows[name] = ends[name]
    counts = np.full(len(rows), not parts)
    train = parts.get(Mode.TRAIN)
    if train is not None:
        # Before its first update, a resumed attempt follows the last step before it.
        followed = rows["train_step"]
        rows["train_step"] = np.where(followed >= 0, followed + train.shift, train.start - 1)
        for mode, part in parts.items():
            if part is not None:
                chosen = rows["mode"] == mode
                rows["step"] += part.shift * chosen
                counts |= chosen & (rows["step"] >= part.start) & (part.stop is None or rows["step"] < part.stop)
    if steps is not None:
        counts &= (steps[0] <= rows["train_step"]) & (rows["train_step"] < steps[1])
    return rows[np.flatnonzero(counts)]
