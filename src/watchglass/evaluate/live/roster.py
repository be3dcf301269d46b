"""What actions are told of the workers: who they are, how far they are, how long their steps take."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection

from watchglass.control import Worker
from watchglass.evaluate.follower import FollowedWorker
from watchglass.evaluate.live.presence import Presence
from watchglass.records import Mode
from watchglass.run import StepView

#: TRAIN steps of which the typical length is told.
_STEPS = 32


class Roster:
    """The workers of a run as their evaluated steps show them. For one thread; asks the store for nothing."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._lengths: dict[tuple[int, str], deque[float]] = {}
        self._train_steps: dict[tuple[int, str], int] = {}

    def evaluated(self, view: StepView) -> None:
        """Note a step that was evaluated."""
        self.note(*step_of(view))

    def note(self, attempt: int, worker: str, train_step: int | None, seconds: float) -> None:
        """Note a step that was evaluated, see :func:`step_of`."""
        if train_step is not None:
            self._train_steps[attempt, worker] = train_step
            self._lengths.setdefault((attempt, worker), deque(maxlen=_STEPS)).append(seconds)

    def step_s(self, worker: FollowedWorker) -> float:
        """Typical length of a worker's TRAIN steps in seconds; 0 where unknown."""
        lengths = self._lengths.get((worker.attempt, worker.worker))
        return statistics.median(lengths) if lengths else 0.0

    def workers(self, workers: Collection[FollowedWorker]) -> list[Worker]:
        """All workers: those that were read, and those of the newest attempt that have only claimed their place yet."""
        presence, attempt = self._presence, self._presence.newest
        read = [self._read(worker) for worker in workers]
        known = {worker.name for worker in read if worker.attempt == attempt}
        silent = [
            Worker(name, True, -1, 0.0, claim, attempt)
            for name, claim in presence.claims(attempt).items()
            if name not in known and not claim.released and not claim.harvest
        ]
        return read + silent

    def _read(self, worker: FollowedWorker) -> Worker:
        return Worker(
            worker.worker,
            self._presence.is_active(worker),
            self._train_steps.get((worker.attempt, worker.worker), -1),
            self.step_s(worker),
            self._presence.claims(worker.attempt).get(worker.worker),
            worker.attempt,
        )


def step_of(view: StepView) -> tuple[int, str, int | None, float]:
    """What a roster notes: attempt, worker, number among TRAIN steps (None for no such), length in seconds."""
    trains = view.mode is Mode.TRAIN and view.leads
    seconds = (view.end_ns - view.start_ns) / 1e9
    return view.attempt, view.worker, view.train_step if trains else None, seconds
