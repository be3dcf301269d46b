"""Complete steps of a run: the place of each, the error for a missing one, and waiting for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from watchglass.errors import (
    CompactedError,
    EndOfRunError,
    InvalidValueError,
    StepNotReadyError,
    StepNotRecordedError,
    UnknownNameError,
)
from watchglass.records import Mode
from watchglass.run.numbering.steps import StepPlace
from watchglass.run.run_records import RunRecords
from watchglass.run.worker import Worker

_Found = TypeVar("_Found")


def locate(run: RunRecords, worker: Worker, step: int, mode: Mode) -> StepPlace:
    """Where a complete step was recorded.

    Raises:
        StepNotReadyError: It is not complete yet.
        StepNotRecordedError: It was not recorded, while later ones were, or the run was opened without it.
        EndOfRunError: The run ended before it.
        InvalidValueError: It is not a step number.
    """
    numbers = worker.numbers(mode)
    if step in numbers:
        return numbers.place(step)
    raise missing_step(run, worker, step, mode, ended=_ended(run, [worker]))


def reading_again(run: RunRecords, read: Callable[[], _Found]) -> _Found:
    """The result of ``read``, repeated once from the compacted files where the run was compacted since it was read."""
    try:
        return read()
    except CompactedError:
        if run.is_snapshot:
            raise
        run.refresh(again=True)
        return read()


def missing_step(run: RunRecords, worker: Worker, step: int, mode: Mode, *, ended: bool) -> UnknownNameError:
    """The error for a complete step that a worker lacks.

    Raises:
        InvalidValueError: It is not a step number.
    """
    if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
        raise InvalidValueError(f"steps are whole numbers from 0 but got {step!r}")
    numbers, what = worker.numbers(mode), f"{mode.name} step {step}"
    if run.opened_steps is not None and mode is Mode.TRAIN:
        low, high = run.opened_steps
        if not low <= step < high:
            return StepNotRecordedError(
                f"{what} was not read: {run.location} was opened with steps {low} to {high - 1} only"
            )
    last = numbers.last
    if mode is Mode.GLOBAL and not ended:
        # Steps of one mode end in order, but steps that began after the last TRAIN step may still be open.
        rows = worker.columns
        last = int(rows["number"][rows["mode"] == Mode.TRAIN].max(initial=-1))
    if step < last:
        return StepNotRecordedError(f"{run.location}: {what} was not recorded (later steps exist); it has {numbers}")
    if ended:
        return EndOfRunError(f"{run.location}: {what} does not exist, the run ended before it; it has {numbers}")
    return StepNotReadyError(
        f"{run.location}: {what} is not complete yet; it has {numbers}; to wait for it: wait_for_steps({step})"
    )


def wait_for(
    run: RunRecords,
    steps: int | Iterable[int],
    mode: Mode,
    worker: str | None,
    timeout_s: float | None,
    poll_s: float | None,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """See :meth:`Run.wait_for_steps`; ``now`` and ``sleep`` are the clock, in seconds."""
    wanted: list[int] = list(steps) if isinstance(steps, Iterable) else [steps]
    if timeout_s is not None and not timeout_s >= 0:
        raise InvalidValueError(f"timeout_s must be at least 0 but got {timeout_s}")
    intervals = run.store.policy.intervals(len(run.workers))
    pause = intervals.poll_s if poll_s is None else poll_s
    if not pause > 0:
        raise InvalidValueError(f"poll_s must be more than 0 but got {poll_s}")
    begun = looked = now()
    ended = False
    while True:
        run.refresh()
        waiting = _first_missing(run, wanted, mode, worker)
        if waiting is None:
            return
        source, step = waiting
        error = missing_step(run, source, step, mode, ended=ended)
        if not isinstance(error, StepNotReadyError):
            raise error
        passed = now() - begun
        if timeout_s is not None and passed >= timeout_s:
            raise StepNotReadyError(
                f"{run.location}: {mode.name} step {step} of {source.name} is not complete after "
                f"{timeout_s:g} s; it has {source.numbers(mode)}"
            )
        team = [run.worker(worker)] if worker is not None else [run.worker(name) for name in run.workers]
        # Their last records may have arrived since, so read once more before giving up.
        if team and all(each.ended for each in team):
            ended = True
            continue
        if now() - looked >= intervals.liveness_s:
            looked = now()
            ended = _ended(run, team)
            if ended:
                continue
        left = pause if timeout_s is None else min(pause, timeout_s - passed)
        sleep(max(left, 0.001))


def _first_missing(run: RunRecords, steps: Iterable[int], mode: Mode, worker: str | None) -> tuple[Worker, int] | None:
    """The first step that is not complete, and a worker that lacks it; None where all are complete.

    A step is complete over all workers when each has ended it, is past it, or has left.
    """
    names = [worker] if worker is not None else run.workers
    team = [run.worker(name) for name in names] or [run.worker()]
    for step in steps:
        have = [each for each in team if step in each.numbers(mode)]
        if not have:
            return team[0], step
        if len(have) == len(team):
            continue
        place = have[0].numbers(mode).place(step)
        order = have[0].end_at(place).order
        lost = set(run.lost)
        for each in team:
            if each not in have and each.reached < order and not each.ended and each.name not in lost:
                return each, step
    return None


def _ended(run: RunRecords, team: Iterable[Worker]) -> bool:
    """Whether all of these workers have ended: each has left, is dead, or belongs to an attempt that has ended."""
    going_on = {each.name for each in team if not each.ended}
    return bool(run.workers) and (not going_on or going_on <= set(run.lost))
