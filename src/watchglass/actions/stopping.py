"""The stop protocol: ends a run at a step that all its workers share, or by a signal if they do not reach it.

A rank that leaves one step early leaves the others blocked in a collective. So the evaluator first requests the step of
every worker, then commits a step that is ahead of all of them. Used by the evaluator.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from watchglass.config import TIMING, Clock, EvaluatorTiming
from watchglass.control import Agreement, Stop, WorkerProgress
from watchglass.errors import StoreError, WatchglassError
from watchglass.records import Finding, Observation
from watchglass.store import Store, read_manifest, signal_owner


class Stopping:
    """Stops of a run, one per attempt. Lives in the evaluator, for one thread, and never waits.

    While the store is unreachable, later ticks retry what could not be written.
    """

    def __init__(
        self,
        store: Store,
        attempt: int | None = None,
        *,
        grace_s: float = 30.0,
        poll_s: float | None = None,
        clock: Clock = time,
        timing: EvaluatorTiming = TIMING.evaluator,
        send_signal: Callable[[WorkerProgress, int], str] | None = None,
    ) -> None:
        """Nothing is stopped yet.

        Args:
            store: The run's store.
            attempt: The attempt to stop; the attempt of the finding if None.
            grace_s: Seconds that workers have to reach the committed step, before SIGTERM.
            poll_s: How often :meth:`tick` is called; None for the interval of the store's policy.
            clock: The time.
            timing: How long to wait for workers, and for the end of a process.
            send_signal: Sends a signal to a worker's process; returns "", or why it did not. By default
                :func:`~watchglass.store.signal_owner`.
        """
        self._store, self._attempt, self._grace_s, self._poll_s = store, attempt, grace_s, poll_s
        self._clock, self._timing = clock, timing
        self._send = send_signal or functools.partial(_signal_proven, store)
        self._stops: dict[int, _Stop] = {}

    @property
    def busy(self) -> bool:
        """Whether a requested stop is incomplete: a worker still runs, and the evaluator must not end."""
        return any(not stop.done for stop in self._stops.values())

    def found(self, finding: Finding) -> list[Observation]:
        """Requests the steps of the workers, if this is the first such finding of its attempt.

        Called at once for every new finding that stops the run; returns the observations for the journal.
        """
        if finding.attempt in self._stops or (self._attempt is not None and finding.attempt != self._attempt):
            return []
        change = Stop(f"{finding.rule}: {finding.message}", finding.id)
        agreement = Agreement(
            self._store, finding.attempt, change, grace_s=self._grace_s, poll_s=self._poll_s, clock=self._clock
        )
        stop = self._stops[finding.attempt] = _Stop(finding, agreement, self._clock.monotonic())
        return self._request(stop)

    def tick(self, workers: Sequence[WorkerProgress]) -> list[Observation]:
        """Continues: commits a step after all workers have answered, sends signals after the grace time."""
        return [
            observation
            for attempt, stop in self._stops.items()
            if not stop.done
            for observation in self._next(stop, [worker for worker in workers if worker.attempt == attempt])
        ]

    def _request(self, stop: _Stop) -> list[Observation]:
        """Requests the steps of the workers. While the store is unreachable, a later tick does."""
        try:
            new = stop.agreement.request()
        except StoreError:
            return []
        stop.begun_s = self._clock.monotonic()
        return [stop.observation("stop_requested")] if new else []

    def _next(self, stop: _Stop, workers: Sequence[WorkerProgress]) -> list[Observation]:
        active = [worker for worker in workers if worker.active]
        if not active and (workers or self._waited(stop.begun_s) > self._timing.stop_answer_s):
            stop.done = True
            return []
        if not stop.agreement.requested:
            return self._request(stop)
        if stop.committed_s is not None:
            return self._enforce(stop, active, self._waited(stop.committed_s))
        try:
            return self._commit(stop, active)
        except StoreError:
            return []

    def _commit(self, stop: _Stop, active: Sequence[WorkerProgress]) -> list[Observation]:
        committed = stop.agreement.commit(active)
        if committed is None:
            return []
        commit, seen, new = committed
        stop.committed_s = self._clock.monotonic()
        return [stop.observation("stop_committed", stop_at_step=commit.at_step, seen=dict(seen))] if new else []

    def _enforce(self, stop: _Stop, active: Sequence[WorkerProgress], waited_s: float) -> list[Observation]:
        """SIGTERM after the grace time, SIGKILL later, to processes that are proven to be workers."""
        # The committed step lies a delay ahead, and a worker may not have read the commit yet.
        late_s = self._store.policy.intervals(len(active)).control_s + stop.agreement.delay_s(len(active))
        if waited_s < self._grace_s + (0.0 if self._store.policy.cheap_lookups else late_s):
            return []
        if stop.signalled_s is None:
            stop.signalled_s = self._clock.monotonic()
            return self._signal(stop, active, signal.SIGTERM)
        if not stop.killed and self._waited(stop.signalled_s) >= self._timing.kill_after_s:
            stop.killed = True
            return self._signal(stop, active, signal.SIGKILL)
        return []

    def _signal(self, stop: _Stop, active: Sequence[WorkerProgress], number: signal.Signals) -> list[Observation]:
        """Observations of the workers that got the signal, and of those that did not."""
        seen: list[Observation] = []
        for worker in active:
            refused = self._send(worker, number)
            row: dict[str, Any] = {"worker": worker.name, "signal": number.name}
            if refused:
                row["reason"] = refused
            kind = "worker_not_signalled" if refused else "worker_stopped"
            seen.append(Observation(kind, stop.finding.attempt, None, row))
        return seen

    def _waited(self, since_s: float) -> float:
        return self._clock.monotonic() - since_s


@dataclass
class _Stop:
    """The stop of one attempt: requested, committed, and if need be enforced.

    An evaluator that takes over from another goes on from the request and commit that are written.
    """

    finding: Finding
    agreement: Agreement
    begun_s: float
    committed_s: float | None = None
    signalled_s: float | None = None
    killed: bool = False
    done: bool = False

    def observation(self, kind: str, **data: Any) -> Observation:
        return Observation(kind, self.finding.attempt, None, {**data, "finding": self.finding.id})


def _signal_proven(store: Store, worker: WorkerProgress, number: int) -> str:
    """Signals a worker's process, if it is proven to be one; returns "", or why it did not."""
    if worker.claim is None:
        return "it has no claim"
    try:
        label = {"run": read_manifest(store).run_id, "attempt": worker.attempt, "worker": worker.name}
        return signal_owner(store, worker.claim, label, number)
    except WatchglassError as error:
        return str(error)
