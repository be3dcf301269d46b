"""Asking a running job to stop at a step that all its workers share."""

from __future__ import annotations

import time
from collections.abc import Callable

from watchglass.config import TIMING
from watchglass.control import Agreement, Stop, WorkerProgress, decode_commit
from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.records import Mode
from watchglass.run.profiling import running_attempt
from watchglass.run.run_records import RunRecords
from watchglass.store import layout, read_small

#: Characters of a reason that are shown.
_LONGEST_REASON = 300


def request_stop(run: RunRecords, reason: str, sleep: Callable[[float], None] = time.sleep) -> int:
    """Ask a running job to stop; returns the training step, in the numbers of its attempt, after which it stops.

    Waits until all workers have answered, or had the time to, which takes seconds for several workers. A worker that is
    past that step stops at its next one. A script that ends no step is not stopped: no signal is sent.

    Args:
        run: The run.
        reason: One sentence for people, which the run keeps.
        sleep: Waits so many seconds.

    Raises:
        EndOfRunError: The run has ended, or the attempt that it was opened with.
        StoreError: The store refused.
    """
    attempt = running_attempt(run, "so it cannot be stopped")
    agreement = Agreement(run.store, attempt, Stop(reason))
    agreement.request()
    while (committed := agreement.commit(_active(run, attempt))) is None:
        sleep(TIMING.end_look_s)
        run.refresh()
    return committed[0].at_step


def stop_reason(run: RunRecords) -> str:
    """The reason that a person or a program gave for the stop of the newest attempt, up to 300 characters.

    "" where there is none: no stop, or one by a finding, which is its own reason.

    Raises:
        StoreError: The store refused.
    """
    try:
        data = read_small(run.store, layout.control_commit(Stop.kind, run.attempt, 0))
        stop = decode_commit(Stop, data).change
    except (MissingFileError, DamagedDataError):
        return ""
    if stop.finding or not isinstance(stop.reason, str):
        return ""
    return stop.reason if len(stop.reason) <= _LONGEST_REASON else f"{stop.reason[: _LONGEST_REASON - 1]}…"


def _active(run: RunRecords, attempt: int) -> list[WorkerProgress]:
    """The progress of the workers that have not left."""
    found = []
    for name in run.workers:
        tables = run.worker(name).attempts.get(attempt)
        if tables is None or run.worker(name).ended:
            continue
        steps = tables.steps.log.latest
        steps = steps[steps["mode"] == Mode.TRAIN]
        last = int(steps["mode_step"][-1]) if len(steps) else -1
        length_s = 0.0
        if len(steps) > 1:
            length_s = (int(steps["end_ns"][-1]) - int(steps["end_ns"][0])) / 1e9 / (len(steps) - 1)
        found.append(WorkerProgress(name, True, last, length_s, None, attempt))
    return found
