"""Which workers of a run may still write: seen where they are on this machine, else told from what they write."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from watchglass.evaluate.follower import FollowedWorker
from watchglass.store import Attendance, Claim, Store, has_attempt, is_alive, pace_of

#: How long somebody may take to recover a worker's last steps before nothing more is expected of it.
_HARVEST_NS = 30_000_000_000
#: Silence after which a worker whose launcher saw it end has lost its last flush, beyond two flush intervals.
_AFTER_LAUNCH_S = 5.0
#: Steps may take longer than anybody thought: so many of them may pass in silence.
_SILENT_STEPS = 10


@dataclass
class _Heard:
    """When something was last read of a worker."""

    mark: object
    since_s: float


class Presence:
    """Who the workers are and whether they live. For one thread; touches the store only in :meth:`look`."""

    def __init__(self, store: Store, attempt: int | None, *, lost_after_s: float) -> None:
        """Knows nobody yet.

        Args:
            store: The store of a run.
            attempt: The only attempt of interest, None for all of them.
            lost_after_s: Silence after which a worker that cannot be seen from here counts as lost.
        """
        self._store, self._attempt, self._lost_after_s = store, attempt, lost_after_s
        self._attendance = Attendance(store)
        self._heard: dict[tuple[int, str], _Heard] = {}
        self._looked_s = float("-inf")
        #: Attempts that there are.
        self.attempts = 0
        #: When an attempt was last found, on the monotonic clock.
        self.begun_s = time.monotonic()

    @property
    def newest(self) -> int:
        """The attempt that may still go on; -1 where there is none."""
        return self.attempts - 1 if self._attempt is None else self._attempt

    def claims(self, attempt: int) -> dict[str, Claim]:
        """The newest claim of each worker of an attempt, as of the last look."""
        return self._attendance.claims(attempt)

    def launch_ended(self, attempt: int, worker: str | None = None) -> bool:
        """Whether the launcher of a worker (or of all of them) has said that its training process ended."""
        return self._attendance.launch_ended(attempt, worker) is not None

    def launch_succeeded(self, attempt: int) -> bool:
        """Whether the first launcher's training ended in order: nobody will start it again."""
        end = self._attendance.launch_ended(attempt)
        return end is not None and end.exit_status in (0, 86)

    def look(self, every_s: float) -> bool:
        """Look at claims and launches, if the last look was so long ago; returns whether it was.

        Raises:
            StoreError: The store refused.
        """
        now_s = time.monotonic()
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

    def listen(self, worker: FollowedWorker) -> None:
        """Note what was read of a worker."""
        key, mark = (worker.attempt, worker.worker), (worker.reached, worker.events)
        heard = self._heard.get(key)
        if heard is None or heard.mark != mark:
            self._heard[key] = _Heard(mark, time.monotonic())

    def excuse(self, seconds: float) -> None:
        """Nothing could be read for so long: that time is no silence of a worker."""
        self.begun_s += seconds
        for heard in self._heard.values():
            heard.since_s += seconds

    def is_active(self, worker: FollowedWorker) -> bool:
        """Whether there may be a training in this worker: whoever only writes down its last steps trains nothing."""
        claim = self.claims(worker.attempt).get(worker.worker)
        return worker.active and (claim is None or (not claim.harvest and is_alive(claim) is not False))

    def gone(self, worker: FollowedWorker, *, step_s: float = 0.0, lost_after_s: float | None = None) -> str:
        """Why nothing more is to be expected of a worker that has not left; "" while it is.

        Args:
            worker: As far as it was read.
            step_s: Typical length of its steps in seconds: long ones are waited for.
            lost_after_s: Silence that is long enough, where that differs.
        """
        return self._gone(worker.attempt, worker.worker, step_s, lost_after_s)

    def awaits(self, known: Collection[tuple[int, str]], *, lost_after_s: float | None = None) -> bool:
        """Whether a worker of the newest attempt has claimed its place, of which nothing was read and more may come.

        Args:
            known: Attempts and names of those of which something was read.
            lost_after_s: As for :meth:`gone`.
        """
        waits = False
        for name, claim in self.claims(self.newest).items():
            key = self.newest, name
            if key in known or claim.released or claim.harvest:
                continue
            self._heard.setdefault(key, _Heard(None, time.monotonic()))
            waits = waits or not self._gone(*key, 0.0, lost_after_s)
        return waits

    def _gone(self, attempt: int, name: str, step_s: float, lost_after_s: float | None) -> str:
        claim = self.claims(attempt).get(name)
        if claim is None:
            return "no process claims it"
        alive = is_alive(claim)
        if claim.harvest and time.time_ns() - claim.wall_ns > _HARVEST_NS:
            alive = False
        if alive is not None:
            return "" if alive else "its process has ended without leaving"
        heard = self._heard.get((attempt, name))
        silent_s = time.monotonic() - heard.since_s if heard is not None else 0.0
        flush_s = pace_of(self._store, len(self.claims(attempt))).flush_s
        if self.launch_ended(attempt, name) and silent_s > 2 * flush_s + _AFTER_LAUNCH_S:
            return "its launcher has seen it end without leaving"
        limit_s = self._lost_after_s if lost_after_s is None else lost_after_s
        if silent_s > max(limit_s, _SILENT_STEPS * step_s) + 2 * flush_s:
            return f"nothing has come from it for {silent_s:.0f} s"
        return ""
