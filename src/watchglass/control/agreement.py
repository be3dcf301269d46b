"""The evaluator's half: requests the step of each worker, then commits a step ahead of all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from watchglass.config import TIMING, Clock
from watchglass.control.messages import Change, Commit, decode_acknowledgement, encode
from watchglass.errors import DamagedDataError, RunExistsError
from watchglass.store import Claim, Store, layout


@dataclass(frozen=True)
class WorkerProgress:
    """The progress of a worker as the evaluator knows it."""

    name: str  #: ``"worker_0"``.
    active: bool  #: Whether it has joined and neither left nor been found dead.
    train_step: int  #: Last TRAIN step whose end was read; -1 for none.
    step_s: float  #: Typical length of its TRAIN steps in seconds; 0 where unknown.
    claim: Claim | None  #: Its process.
    attempt: int = 0  #: Its attempt.


@dataclass(eq=False)
class Agreement:
    """Makes all workers of an attempt apply a change at the same step. For one thread; never waits.

    An evaluator that takes over from another finds what that has requested and committed: what is written counts.
    Methods raise StoreError where the store refuses, and may be called again.
    """

    store: Store  #: The run's store.
    attempt: int  #: The attempt of the workers.
    change: Change  #: The requested change.
    number: int = 0  #: Number of the change among those of its kind in this attempt, from 0 on.
    grace_s: float = 30.0  #: Seconds that workers have to acknowledge, at most.
    poll_s: float | None = None  #: How often :meth:`commit` is called; None for the interval of the store's policy.
    clock: Clock = time
    _requested_s: float | None = field(default=None, init=False)

    @property
    def requested(self) -> bool:
        """Whether the request is written."""
        return self._requested_s is not None

    def request(self) -> bool:
        """Requests the step of each worker; returns whether this is the first evaluator to do so."""
        new = self._write(layout.control_request(self.change.kind, self.attempt, self.number), self.change)
        self._requested_s = self.clock.monotonic()
        return new

    def commit(self, active: Sequence[WorkerProgress]) -> tuple[Commit, Mapping[str, int | None], bool] | None:
        """Commits a step once all workers have acknowledged, or had the time to.

        Returns:
            The commit, the step that each worker has acknowledged, and whether it was written by this call; None where
            workers are waited for.
        """
        assert self._requested_s is not None
        intervals = self.store.policy.intervals(len(active))
        seen: Mapping[str, int | None] = {}
        if len(active) > 1:
            answer_s = max(TIMING.acknowledgement_s, intervals.control_s + self.delay_s(len(active)))
            patience_s = min(answer_s, max(self.grace_s, intervals.control_s))
            seen = self._acknowledged(active)
            if None in seen.values() and self.clock.monotonic() - self._requested_s < patience_s:
                return None
        steps = [step for step in seen.values() if step is not None]
        furthest = max([*steps, *(worker.train_step for worker in active)], default=-1)
        commit = Commit(furthest + self._margin(active), self.change, self.number)
        new = self._write(layout.control_commit(self.change.kind, self.attempt, self.number), commit)
        return commit, seen, new

    def delay_s(self, workers: int) -> float:
        """Most seconds from an acknowledgement until the last of this number of workers has read the commit."""
        intervals = self.store.policy.intervals(workers)
        poll_s = intervals.poll_s if self.poll_s is None else self.poll_s
        late_s = 0.0 if self.store.policy.cheap_lookups else poll_s
        return 2 * (poll_s + intervals.answer_s) + late_s + TIMING.request_slack_s

    def _margin(self, active: Sequence[WorkerProgress]) -> int:
        """Steps between the furthest worker and the committed one: enough for all to read the commit before it.

        A single worker waits for no other: it gets no request and acts at its next boundary. Several need the time from
        an acknowledgement until the last one has read the commit, in steps of the fastest.
        """
        if len(active) < 2:
            return 1
        lengths = [worker.step_s for worker in active if worker.step_s > 0]
        if not lengths:
            return 2
        return max(2, math.ceil(self.delay_s(len(active)) / min(lengths)) + 1)

    def _acknowledged(self, active: Sequence[WorkerProgress]) -> dict[str, int | None]:
        """The TRAIN step that each worker has acknowledged; None where it has not."""
        kind, attempt, number = self.change.kind, self.attempt, self.number
        ranges = [(layout.control_seen(kind, attempt, number, worker.name), 0, 4096) for worker in active]
        return {worker.name: _step(data) for worker, data in zip(active, self.store.read_many(ranges), strict=True)}

    def _write(self, path: str, message: Change | Commit) -> bool:
        try:
            self.store.write(path, encode(message, self.clock.time_ns()))
        except RunExistsError:
            return False
        return True


def _step(data: bytes | None) -> int | None:
    try:
        return decode_acknowledgement(data or b"").train_step
    except DamagedDataError:
        return None  # not there yet, or being written
