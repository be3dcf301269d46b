"""When the steps of a worker and their phases were, on one clock for all workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watchglass.records import PHASE_NAMES, PHASES, Mode
from watchglass.run.clocks import wall_times
from watchglass.run.worker import Worker

_FORWARD = PHASE_NAMES.index("forward")


@dataclass(frozen=True, eq=False)
class StepTimes:
    """When the steps of one worker were, in the order of their ends.

    Times are wall times in nanoseconds since 1970. Within an attempt they follow the monotonic clock, so a wall clock
    that is set during the run moves none of them.
    """

    rows: NDArray[np.void]  #: The steps, as rows of :attr:`Worker.columns`.
    #: int64[n]. With phases: the end of the step before, since phases are all of the time since then. Without: the call
    #: of the model.
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]  #: int64[n]. With phases, an evaluation's step ends when the model returns.
    #: float64[n, 8], seconds of each of :data:`PHASE_NAMES`; NaN in steps without phases.
    phases_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, begin_ns: int, end_ns: int) -> StepTimes:
        """The steps whose middle is between two times."""
        middle_ns = (self.begin_ns + self.end_ns) // 2
        at = np.flatnonzero((middle_ns >= begin_ns) & (middle_ns <= end_ns))
        return StepTimes(self.rows[at], self.begin_ns[at], self.end_ns[at], self.phases_s[at])


def step_times(worker: Worker) -> StepTimes:
    """When the steps of a worker that count were; empty for a worker without steps."""
    rows = worker.columns
    ends = worker.ends(rows)
    end_ns, phases_s = np.zeros(len(rows), np.int64), np.full((len(rows), len(PHASE_NAMES)), np.nan)
    called_ns, closed_ns = ends["start_ns"].astype(np.int64), ends["end_ns"].astype(np.int64)
    seconds = (closed_ns - called_ns) / 1e9
    for attempt, tables in worker.attempts.items():
        own = np.flatnonzero(rows["attempt"] == attempt)
        recorded = tables.log(PHASES).unique(PHASES.unique)
        _, at, found = np.intersect1d(rows["own"][own], recorded["global_step"], return_indices=True)
        phases_s[own[at]] = np.stack([recorded[field.name][found] for field in PHASES.own], 1)
        # Such a step is closed by the next call of a model, long after the phases that follow it have begun.
        returned_ns = called_ns + np.rint(1e9 * phases_s[:, _FORWARD])
        early = (rows["mode"] != int(Mode.TRAIN)) & (returned_ns < closed_ns)
        last_ns = closed_ns.copy()
        last_ns[early] = returned_ns[early]
        end_ns[own] = wall_times(tables.headers[:1], last_ns[own]).astype(np.int64)
    whole = phases_s.sum(1)
    seconds = np.where(np.isnan(whole), seconds, whole)
    order = np.argsort(end_ns, kind="stable")
    begin_ns = end_ns - np.rint(1e9 * seconds).astype(np.int64)
    return StepTimes(rows[order], begin_ns[order], end_ns[order], phases_s[order])


def last_step_ns(worker: Worker) -> int | None:
    """Wall time of the end of the last step of a worker, nanoseconds since 1970; None for a worker without steps."""
    rows = worker.columns[-1:]
    if not len(rows):
        return None
    headers = worker.attempts[int(rows["attempt"][0])].headers
    return int(wall_times(headers, worker.ends(rows)["end_ns"])[0].astype(np.int64))
