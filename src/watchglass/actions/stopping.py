"""The stop protocol: ends a run at a step boundary that all its workers share, or by signal where none comes.

A rank that leaves one step early leaves the others blocked in a collective. So the evaluator first requests the step of
every worker, then commits a step that is ahead of all of them. docs/architecture.md has the picture.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from watchglass.config import Clock
from watchglass.control import Agreement, Stop, WorkerProgress
from watchglass.errors import StoreError, WatchglassError
from watchglass.records import Finding, Observation
from watchglass.store import Store, read_manifest, signal_owner

#: How long workers are looked for where none is known.
_ANSWER_S = 5.0
#: From SIGTERM to SIGKILL.
_KILL_AFTER_S = 10.0


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
        send_signal: Callable[[WorkerProgress, int], str] | None = None,
    ) -> None:
        """Nothing is stopped yet.

        Args:
            store: The run's store.
            attempt: The attempt to stop; the attempt of the finding if None.
            grace_s: Seconds that workers have to reach the committed step, before SIGTERM.
            poll_s: How often :meth:`tick` is called; None for the interval of the store's policy.
            clock: The time.
            send_signal: Sends a signal to a worker's process and gives "", or why it did not; by default
                :func:`~watchglass.store.signal_owner`.
        """
        self._attempt = attempt
        self._make = functools.partial(
            _Stop,
            store,
            grace_s=grace_s,
            poll_s=poll_s,
            clock=clock,
            send_signal=send_signal or functools.partial(_signal, store),
        )
        self._stops: dict[int, _Stop] = {}

    @property
    def busy(self) -> bool:
        """From the request until every worker is gone: the evaluator then stays until it is."""
        return any(not stop.done for stop in self._stops.values())

    def found(self, finding: Finding) -> list[Observation]:
        """Requests the steps of the workers, if this is the first such finding of its attempt.

        Called at once for every new finding that stops the run; returns the observations for the journal.
        """
        if finding.attempt in self._stops or (self._attempt is not None and finding.attempt != self._attempt):
            return []
        stop = self._stops[finding.attempt] = self._make(finding)
        return stop.request()

    def tick(self, workers: Sequence[WorkerProgress]) -> list[Observation]:
        """Goes on: commits a step once all have answered, signals once the grace time is over."""
        return [
            observation
            for attempt, stop in self._stops.items()
            for observation in stop.tick([worker for worker in workers if worker.attempt == attempt])
        ]


class _Stop:
    """The stop of one attempt: requested, committed, and if need be enforced.

    An evaluator that takes over from another goes on from the request and commit that are written.
    """

    def __init__(
        self,
        store: Store,
        finding: Finding,
        *,
        grace_s: float,
        poll_s: float | None,
        clock: Clock,
        send_signal: Callable[[WorkerProgress, int], str],
    ) -> None:
        self._store, self._finding, self._attempt = store, finding, finding.attempt
        self._grace_s, self._clock, self._send = grace_s, clock, send_signal
        change = Stop(f"{finding.rule}: {finding.message}", finding.id)
        self._agreement = Agreement(store, finding.attempt, change, grace_s=grace_s, poll_s=poll_s, clock=clock)
        self._begun_s = clock.monotonic()
        self._committed_s: float | None = None
        self._signalled_s: float | None = None
        self._killed = False
        self.done = False

    def request(self) -> list[Observation]:
        """Requests the steps of the workers; while the store is unreachable a later tick does."""
        try:
            new = self._agreement.request()
        except StoreError:
            return []
        self._begun_s = self._clock.monotonic()
        return [self._observation("stop_requested")] if new else []

    def tick(self, workers: Sequence[WorkerProgress]) -> list[Observation]:
        if self.done:
            return []
        active = [worker for worker in workers if worker.active]
        if not active and (workers or self._waited(self._begun_s) > _ANSWER_S):
            self.done = True
            return []
        if not self._agreement.requested:
            return self.request()
        if self._committed_s is None:
            try:
                return self._commit(active)
            except StoreError:
                return []
        return self._enforce(active)

    def _commit(self, active: Sequence[WorkerProgress]) -> list[Observation]:
        committed = self._agreement.commit(active)
        if committed is None:
            return []
        commit, seen, new = committed
        self._committed_s = self._clock.monotonic()
        return [self._observation("stop_committed", stop_at_step=commit.at_step, seen=dict(seen))] if new else []

    def _enforce(self, active: Sequence[WorkerProgress]) -> list[Observation]:
        """SIGTERM after the grace time, SIGKILL ten seconds later, to processes that are proven to be workers."""
        # The committed step lies a delay ahead, and a worker without a request has yet to look.
        late_s = self._store.policy.intervals(len(active)).control_s + self._agreement.delay_s(len(active))
        grace_s = self._grace_s + (0.0 if self._store.policy.cheap_lookups else late_s)
        if self._committed_s is None or self._waited(self._committed_s) < grace_s:
            return []
        if self._signalled_s is None:
            self._signalled_s = self._clock.monotonic()
            return self._signal(active, signal.SIGTERM)
        if not self._killed and self._waited(self._signalled_s) >= _KILL_AFTER_S:
            self._killed = True
            return self._signal(active, signal.SIGKILL)
        return []

    def _signal(self, active: Sequence[WorkerProgress], number: signal.Signals) -> list[Observation]:
        """Observations of the workers that got the signal, and of those that did not."""
        seen: list[Observation] = []
        for worker in active:
            refused = self._send(worker, number)
            row: dict[str, Any] = {"worker": worker.name, "signal": number.name}
            if refused:
                row["reason"] = refused
            kind = "worker_not_signalled" if refused else "worker_stopped"
            seen.append(Observation(kind, self._attempt, None, row))
        return seen

    def _waited(self, since_s: float) -> float:
        return self._clock.monotonic() - since_s

    def _observation(self, kind: str, **data: Any) -> Observation:
        return Observation(kind, self._attempt, None, {**data, "finding": self._finding.id})


def _signal(store: Store, worker: WorkerProgress, number: int) -> str:
    if worker.claim is None:
        return "it has no claim"
    try:
        label = {"run": read_manifest(store).run_id, "attempt": worker.attempt, "worker": worker.name}
        return signal_owner(store, worker.claim, label, number)
    except WatchglassError as error:
        return str(error)
