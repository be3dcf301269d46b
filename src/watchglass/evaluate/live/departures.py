"""Workers that go without a word: waited for, harvested, lost, and welcome again when they write again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from watchglass.errors import WatchglassError
from watchglass.evaluate.follower import FollowedWorker, Key
from watchglass.evaluate.live.presence import Presence
from watchglass.evaluate.live.roster import Roster
from watchglass.record import harvest
from watchglass.records import Observation
from watchglass.store import Store


class Departures:
    """Which workers of a run may still write, and what is written down of those that cannot. For one thread."""

    def __init__(
        self, store: Store, presence: Presence, roster: Roster, write: Callable[[Sequence[Observation]], None]
    ) -> None:
        """Nobody has gone yet.

        Args:
            store: The store of a run.
            presence: Who the workers are and whether they live.
            roster: How far they are.
            write: Takes what shall be in the journal, and shown to the rules.
        """
        self._store, self._presence, self._roster, self._write = store, presence, roster, write
        self._harvested: set[tuple[int, str]] = set()

    def begin_again(self) -> None:
        """All of the run is read again."""
        self._harvested.clear()

    def listen(self, workers: Collection[FollowedWorker]) -> None:
        """Note whom something new was read of; a worker that was taken for lost and has written again is not lost."""
        for worker in workers:
            self._presence.listen(worker)
            if worker.has_returned:
                self._harvested.discard((worker.attempt, worker.worker))
                self._write([worker.observation("worker_returned", worker.losses)])

    def awaited(
        self, workers: Mapping[Key, FollowedWorker], silence_s: float | None, drained: Callable[[], bool]
    ) -> bool:
        """Whether some worker may still write; those that cannot are harvested, and lost once all of them is read.

        Args:
            workers: Those of the run, as far as they were read.
            silence_s: Silence after which a worker that cannot be seen is lost, None for what was configured.
            drained: Reads everything that is there; returns whether there was nothing.

        Raises:
            StoreError, CompactedError: See :meth:`Follower.poll`.
        """
        newest = self._presence.newest
        claims = self._presence.claims(newest)
        if any(w.worker not in claims for w in workers.values() if w.active and w.attempt >= newest):
            self._presence.look(0.0)
        awaited = self._presence.awaits(workers, lost_after_s=silence_s)
        for worker in [worker for worker in workers.values() if worker.active]:
            if worker.attempt < self._presence.newest:
                continue  # an attempt that has a successor is over
            key = (worker.attempt, worker.worker)
            if not self._presence.gone(worker, step_s=self._roster.step_s(worker), lost_after_s=silence_s):
                awaited = True
            elif key not in self._harvested:
                self._harvested.add(key)
                self._harvest(worker.attempt)
                awaited = True
            elif drained():
                # It may have written its last words between our last look and its death: hence only once drained.
                self._write([worker.observation("worker_lost", worker.losses + 1)])
            else:
                awaited = True
        return awaited

    def _harvest(self, attempt: int) -> None:
        """Recovers what a dead worker recorded last; whatever comes of it is read like everything else."""
        try:
            harvest(self._store, by="evaluator", attempt=attempt)
        except WatchglassError as error:
            print(f"watchglass: the last steps of a killed worker are not recovered yet: {error}", file=sys.stderr)
        self._presence.look(0.0)
