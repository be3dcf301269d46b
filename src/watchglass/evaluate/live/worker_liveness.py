"""Which workers of a run may still write, how far they are, and which are lost.

The process of a worker on this machine can be seen. Any other worker lives as long as it writes, or its launcher has
not reported its end.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from watchglass.config import Clock, EvaluatorConfig
from watchglass.control import WorkerProgress
from watchglass.errors import StoreError, WatchglassError
from watchglass.evaluate.follower import FollowedWorker, Key
from watchglass.record import harvest
from watchglass.records import Mode, Observation
from watchglass.store import Attendance, Claim, Store, has_attempt, is_alive
from watchglass.tables import StepView

#: TRAIN steps of which the typical length is reported.
_STEPS = 32


class WorkerLiveness:
    """The workers and whether they live. For one thread."""

    def __init__(
        self, store: Store, config: EvaluatorConfig, observed: Callable[[Sequence[Observation]], None], clock: Clock
    ) -> None:
        """Knows no worker yet.

        Args:
            store: The store of a run.
            config: Which attempt is of interest, and how long a silence may be.
            observed: Takes observations for the journal and the rules.
            clock: The time.
        """
        self._store, self._observed, self._clock, self._attendance = store, observed, clock, Attendance(store)
        self._attempt, self._lost_after_s, self._timing = config.attempt, config.lost_after_s, config.timing
        self._heard: dict[Key, tuple[object, float]] = {}
        self._lengths: dict[Key, deque[float]] = {}
        self._train_steps: dict[Key, int] = {}
        self._harvested: set[Key] = set()
        self._looked_s = float("-inf")
        self.attempts = 0  #: Number of attempts.
        self.begun_s = self._clock.monotonic()  #: When an attempt was last found, on the monotonic clock.

    @property
    def newest(self) -> int:
        """The attempt that may still go on; -1 where there is none."""
        return self.attempts - 1 if self._attempt is None else self._attempt

    def claims(self, attempt: int) -> dict[str, Claim]:
        """The newest claim of each worker of an attempt, as of the last look."""
        return self._attendance.claims(attempt)

    def launch_ended(self, attempt: int, worker: str | None = None) -> bool:
        """Whether the launcher of a worker (or of all workers) reported the end of its training process."""
        return self._attendance.launch_ended(attempt, worker) is not None

    def launch_succeeded(self, attempt: int) -> bool:
        """Whether the first launcher's training run ended in order: no process will start it again."""
        end = self._attendance.launch_ended(attempt)
        return end is not None and end.exit_status in (0, 86)

    def look(self, every_s: float) -> bool:
        """Check claims and launches if the interval since the last check has passed; returns whether it has.

        Raises:
            StoreError: The store refused.
        """
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < every_s:
            return False
        if self._attempt is None:
            while has_attempt(self._store, self.attempts):
                self.attempts += 1
                self.begun_s = now_s
        if self.newest >= 0:
            self._attendance.look(self.newest)
        self._looked_s = now_s
        return True

    def listen(self, workers: Collection[FollowedWorker]) -> None:
        """Note which workers have new records; a lost worker that has written again is not lost."""
        for worker in workers:
            key, mark = (worker.attempt, worker.worker), (worker.reached, worker.events)
            if key not in self._heard or self._heard[key][0] != mark:
                self._heard[key] = mark, self._clock.monotonic()
            if worker.has_returned:
                self._harvested.discard(key)
                self._observed([worker.observation("worker_returned", worker.losses)])

    def excuse(self, seconds: float) -> None:
        """Note how long the store was not read: that time counts as no silence of a worker."""
        self.begun_s += seconds
        self._heard = {key: (mark, since_s + seconds) for key, (mark, since_s) in self._heard.items()}

    def begin_again(self) -> None:
        """The run is read again from its start."""
        self._harvested.clear()

    def evaluated(self, attempt: int, worker: str, train_step: int | None, seconds: float) -> None:
        """Note a step that was evaluated, see :func:`step_of`."""
        if train_step is not None:
            self._train_steps[attempt, worker] = train_step
            self._lengths.setdefault((attempt, worker), deque(maxlen=_STEPS)).append(seconds)

    def workers(self, workers: Collection[FollowedWorker]) -> list[WorkerProgress]:
        """For actions: those that were read, and those of the newest attempt that have only claimed their place yet."""
        attempt = self.newest
        read = [self._read(worker) for worker in workers]
        known = {worker.name for worker in read if worker.attempt == attempt}
        silent = [
            WorkerProgress(name, True, -1, 0.0, claim, attempt)
            for name, claim in self.claims(attempt).items()
            if name not in known and not claim.released and not claim.harvest
        ]
        return read + silent

    def awaits(self, known: Collection[Key], *, lost_after_s: float | None = None) -> bool:
        """Whether a worker of the newest attempt has claimed its files, has no records yet, and may still write.

        Args:
            known: Attempts and names of workers with records.
            lost_after_s: Silence that is long enough, where that differs.
        """
        waits = False
        for name, claim in self.claims(self.newest).items():
            key = self.newest, name
            if key in known or claim.released or claim.harvest:
                continue
            self._heard.setdefault(key, (None, self._clock.monotonic()))
            waits = waits or not self._is_gone(key, 0.0, lost_after_s)
        return waits

    def awaited(
        self, workers: Mapping[Key, FollowedWorker], silence_s: float | None, drained: Callable[[], bool]
    ) -> bool:
        """Whether some worker may still write; a dead one is harvested, and lost once all its records are read.

        Args:
            workers: Workers of the run, as far as they were read.
            silence_s: Silence after which a worker on another machine is lost; the configured one if None.
            drained: Reads everything that is new; returns whether there was nothing.

        Raises:
            StoreError, CompactedError: See :meth:`Follower.poll`.
        """
        newest = self.newest
        claims = self.claims(newest)
        if any(w.worker not in claims for w in workers.values() if w.active and w.attempt >= newest):
            self.look(0.0)
        awaited = self.awaits(workers, lost_after_s=silence_s)
        for key, worker in [(key, worker) for key, worker in workers.items() if worker.active]:
            if worker.attempt < self.newest:
                continue  # an attempt that has a successor is over
            if not self._is_gone(key, self._step_s(key), silence_s):
                awaited = True
            elif key not in self._harvested:
                self._harvested.add(key)
                self._harvest(worker.attempt)
                awaited = True
            elif drained():
                # It may have written between the last look and its death, so the decision waits until all is read.
                self._observed([worker.observation("worker_lost", worker.losses + 1)])
            else:
                awaited = True
        return awaited

    def _read(self, worker: FollowedWorker) -> WorkerProgress:
        key = worker.attempt, worker.worker
        claim = self.claims(worker.attempt).get(worker.worker)
        # A claim for a harvest belongs to no training process.
        trains = claim is None or (not claim.harvest and is_alive(claim) is not False)
        return WorkerProgress(
            worker.worker, worker.active and trains, self._train_steps.get(key, -1), self._step_s(key), claim,
            worker.attempt,
        )  # fmt: skip

    def _step_s(self, key: Key) -> float:
        """Typical length of a worker's TRAIN steps in seconds; 0 where unknown."""
        return statistics.median(self._lengths[key]) if key in self._lengths else 0.0

    def _is_gone(self, key: Key, step_s: float, lost_after_s: float | None) -> bool:
        """Whether a worker that has not left will write no more; long steps extend the wait."""
        attempt, name = key
        claim = self.claims(attempt).get(name)
        if claim is None:
            return True
        alive = is_alive(claim)
        if claim.harvest and self._clock.time_ns() - claim.wall_ns > 1e9 * self._timing.harvest_s:
            alive = False
        if alive is not None:
            return not alive
        silent_s = self._clock.monotonic() - self._heard[key][1] if key in self._heard else 0.0
        flush_s = self._store.policy.intervals(len(self.claims(attempt))).flush_s
        if self.launch_ended(attempt, name) and silent_s > 2 * flush_s + self._timing.after_launch_s:
            return True
        limit_s = self._lost_after_s if lost_after_s is None else lost_after_s
        return silent_s > max(limit_s, self._timing.silent_steps * step_s) + 2 * flush_s

    def _harvest(self, attempt: int) -> None:
        """Recovers the last records of a dead worker, which are then read like all others."""
        try:
            harvest(self._store, by="evaluator", attempt=attempt)
        except StoreError:
            pass  # the journal, in the same store, reports it; the launcher and `watchglass check` recover them, too
        except WatchglassError as error:
            print(f"watchglass: could not recover the last steps of a killed worker: {error}", file=sys.stderr)
        self.look(0.0)


def step_of(view: StepView) -> tuple[int, str, int | None, float]:
    """Of a step: attempt, worker, number among TRAIN steps (None for another mode), length in seconds."""
    trains = view.mode is Mode.TRAIN and view.leads
    seconds = (view.end_ns - view.start_ns) / 1e9
    return view.attempt, view.worker, view.train_step if trains else None, seconds
