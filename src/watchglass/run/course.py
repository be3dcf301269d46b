"""The complete steps of one worker that count, over all attempts, with the numbers that they have in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchglass.records import Mode, StepEnd
from watchglass.run.lineage import Lineage
from watchglass.run.steps import Place
from watchglass.run.tables import WorkerTables

#: The modes that steps are recorded in.
STORED_MODES = (Mode.TRAIN, Mode.EVAL, Mode.PREDICT)


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


def course_of(
    attempts: Mapping[int, WorkerTables], lineage: Lineage | None, steps: tuple[int, int] | None
) -> list[tuple[StepEnd, Place]]:
    """The steps in the order of training, and where each was recorded.

    Args:
        attempts: One worker's tables by attempt, oldest first.
        lineage: Which steps count; all of them if None.
        steps: Leave out other TRAIN steps than these, half-open, and what belongs to them.
    """
    found: list[tuple[StepEnd, Place]] = []
    next_global = 0
    for attempt in counting(attempts, lineage):
        kept = _kept(attempts, attempt, lineage)
        if steps is not None:
            kept = [row for row in kept if steps[0] <= row[0].train_step < steps[1]]
        numbers = [place.global_step for _, place in kept]
        shift = max(0, next_global - min(numbers, default=0))
        if shift:
            kept = [(replace(end, global_step=place.global_step + shift), place) for end, place in kept]
        next_global = max(numbers, default=-1) + 1 + shift
        found += sorted(kept, key=lambda row: row[0].order)
    return found


def _kept(attempts: Mapping[int, WorkerTables], attempt: int, lineage: Lineage | None) -> list[tuple[StepEnd, Place]]:
    """Steps of an attempt that count, with the mode steps of the run."""
    rows = [(end, Place(attempt, end.global_step)) for end in attempts[attempt].steps.values()]
    if lineage is None or not lineage.parts:
        return rows
    parts = {
        mode: next((part for part in lineage.of(mode, attempts) if part.attempt == attempt), None)
        for mode in STORED_MODES
    }
    train = parts[Mode.TRAIN]
    kept: list[tuple[StepEnd, Place]] = []
    for end, place in rows:
        part = parts.get(end.mode)
        if part is None or train is None or not part.holds(end.mode_step):
            continue
        # Before its first update an attempt that was resumed stands behind the last one before it.
        after = end.train_step + train.shift if end.train_step >= 0 else train.start - 1
        if part.shift or after != end.train_step:
            end = replace(end, mode_step=end.mode_step + part.shift, train_step=after)
        kept.append((end, place))
    return kept
