"""StopTraining: ends a training at a step boundary that all its workers share, by signal where none comes.

A rank that leaves one step early leaves the others blocked in a collective. So the evaluator first asks every worker
which step it is at, then commits a step that all of them have still before them. docs/architecture.md has the picture.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from watchglass.actions.action import Action, Worker
from watchglass.errors import MissingFileError
from watchglass.records import Finding, Observation, Severity
from watchglass.store import Store, is_alive, layout

#: Workers look for a request this often on a local folder.
_RECORDER_POLL_S = 0.1
#: A worker that has not said where it is after this long is not waited for.
_ANSWER_S = 5.0
#: From SIGTERM to SIGKILL.
_KILL_AFTER_S = 10.0


class Clock(Protocol):
    """What a stop needs of a clock; the module :mod:`time` is one."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment."""

    def time_ns(self) -> int:
        """Wall time, nanoseconds since 1970."""


class StopTraining(Action):
    """Stops the training at the first finding of at least a severity. For one thread."""

    def __init__(
        self,
        store: Store,
        attempt: int,
        *,
        stop_on: Severity = Severity.ERROR,
        grace_s: float = 30.0,
        poll_s: float = 0.1,
        clock: Clock = time,
        send_signal: Callable[[int, int], None] = os.kill,
    ) -> None:
        """A stop that has not begun.

        Args:
            store: The run's store.
            attempt: The attempt to stop.
            stop_on: Least severity of a finding that stops.
            grace_s: Seconds that workers have to reach the committed step, before SIGTERM.
            poll_s: How often :meth:`tick` is called.
            clock: The time.
            send_signal: As :func:`os.kill`.
        """
        self._store, self._attempt, self._stop_on = store, attempt, stop_on
        self._grace_s, self._poll_s, self._clock, self._send = grace_s, poll_s, clock, send_signal
        self._finding: Finding | None = None
        self._requested_s = 0.0
        self._committed_s: float | None = None
        self._signalled_s: float | None = None
        self._killed = False
        self._done = False

    @property
    def busy(self) -> bool:
        """From the request until every worker is gone."""
        return self._finding is not None and not self._done

    def found(self, finding: Finding) -> list[Observation]:
        """Asks the workers where they are, if this finding is bad enough and the first such."""
        if self._finding is not None or finding.severity.rank < self._stop_on.rank:
            return []
        if finding.attempt != self._attempt:
            return []
        self._finding, self._requested_s = finding, self._clock.monotonic()
        self._put(layout.stop_request(self._attempt), finding=finding.id, reason=self._reason(finding))
        return [self._observation("stop_requested", finding=finding.id)]

    def tick(self, workers: Sequence[Worker]) -> list[Observation]:
        """Goes on: commits a step once all have answered, signals once the grace time is over."""
        if not self.busy:
            return []
        active = [worker for worker in workers if worker.active]
        if not active and (workers or self._waited(self._requested_s) > _ANSWER_S):
            self._done = True
            return []
        if self._committed_s is None:
            return self._commit(active)
        return self._enforce(active)

    def _commit(self, active: Sequence[Worker]) -> list[Observation]:
        if self._finding is None:
            return []
        seen = {worker.name: self._seen(worker) for worker in active}
        steps = [step for step in seen.values() if step is not None]
        if len(steps) < len(active) and self._waited(self._requested_s) < min(_ANSWER_S, self._grace_s):
            return []
        furthest = max([*steps, *(worker.train_step for worker in active)], default=-1)
        stop_at = furthest + self._margin(active)
        self._put(
            layout.stop_commit(self._attempt), stop_at_step=stop_at, reason=self._reason(self._finding),
            finding=self._finding.id,
        )  # fmt: skip
        self._committed_s = self._clock.monotonic()
        return [self._observation("stop_committed", stop_at_step=stop_at, seen=seen, finding=self._finding.id)]

    def _margin(self, active: Sequence[Worker]) -> int:
        """Steps between the furthest worker and the stop: enough for all to read the commit before they get there.

        One worker alone waits for nobody and stops at its next boundary. Several need the time from a worker's answer
        until the last one has read the commit, in steps of the quickest.
        """
        if len(active) < 2:
            return 1
        lengths = [worker.step_s for worker in active if worker.step_s > 0]
        if not lengths:
            return 2
        delay_s = 2 * (self._poll_s + _RECORDER_POLL_S) + 0.2
        return max(2, math.ceil(delay_s / min(lengths)) + 1)

    def _enforce(self, active: Sequence[Worker]) -> list[Observation]:
        """SIGTERM after the grace time, SIGKILL ten seconds later, to processes of this machine that still live."""
        if self._committed_s is None or self._waited(self._committed_s) < self._grace_s:
            return []
        if self._signalled_s is None:
            self._signalled_s = self._clock.monotonic()
            return self._signal(active, signal.SIGTERM)
        if not self._killed and self._waited(self._signalled_s) >= _KILL_AFTER_S:
            self._killed = True
            return self._signal(active, signal.SIGKILL)
        return []

    def _signal(self, active: Sequence[Worker], number: signal.Signals) -> list[Observation]:
        sent: list[Observation] = []
        for worker in active:
            # A process id may have been given to another process: only one with the same start time is meant.
            if worker.claim is None or is_alive(worker.claim) is not True:
                continue
            try:
                self._send(worker.claim.pid, number)
            except OSError:
                continue  # it ended in between
            sent.append(self._observation("worker_stopped", worker=worker.name, signal=number.name))
        return sent

    def _seen(self, worker: Worker) -> int | None:
        try:
            answer = json.loads(self._store.read(layout.stop_seen(self._attempt, worker.name)))
            return int(answer["train_step"])
        except (MissingFileError, ValueError, KeyError, TypeError):
            return None  # not there yet, or being written

    def _put(self, path: str, **data: Any) -> None:
        data["wall_ns"] = self._clock.time_ns()
        self._store.write(path, json.dumps(data).encode(), replace=True)

    def _waited(self, since_s: float) -> float:
        return self._clock.monotonic() - since_s

    @staticmethod
    def _reason(finding: Finding) -> str:
        return f"{finding.rule}: {finding.message}"

    def _observation(self, kind: str, **data: Any) -> Observation:
        return Observation(kind, self._attempt, None, data)
