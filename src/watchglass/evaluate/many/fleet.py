"""Following many runs in one process: found while it goes, each in its turn, none for longer than its share.

A run that writes has its turns at the interval of its store. The pauses of a quiet run grow: each is a share of the
time for which it has been quiet. So a flush waits only a small share of the time since the flush before it, and quiet
runs cost almost nothing.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from watchglass.config import Clock, EvaluatorConfig
from watchglass.errors import DamagedDataError, InvalidValueError, StoreError, WatchglassError
from watchglass.evaluate.live.snapshot import Snapshots
from watchglass.evaluate.live.store_retry import slept
from watchglass.evaluate.many.member import Audience, Common, Member, State
from watchglass.run import RunSearch
from watchglass.store import Store
from watchglass.view import printable

#: Number of ended runs that each search examines for a new attempt, in turn.
_ASKED_ASLEEP = 5
#: Runs that are read from their start at the same time: bounds the memory for that.
_CATCHING_UP = 8
#: Runs that wait for their last deliveries while the others go on.
_WAITING_AT_ONCE = 8
#: Number of different runs in a row with an unreachable store after which it counts as unreachable for all; one
#: retries.
_UNREACHABLE_IN_A_ROW = 3
#: Ended runs of which a snapshot is kept.
_SNAPSHOTS = 100


class Fleet:
    """Follows all runs below a prefix. For one thread: :meth:`turn` gives one run its turn, or searches for runs.

    Runs that had ended and were evaluated before are not opened. Of a run that has ended only a snapshot stays.
    """

    def __init__(
        self,
        config: EvaluatorConfig,
        store: Store,
        audience: Audience,
        *,
        wait_s: float = 600.0,
        output: TextIO | None = None,
        snapshots: Snapshots | None = None,
        clock: Clock = time,
        pause: Callable[[float], bool] = slept,
        member: Callable[[str, Store, Common], Member] = Member,
    ) -> None:
        """Knows no run yet.

        Args:
            config: The settings of every evaluator, except the run.
            store: The prefix.
            audience: Is notified of what happens to the runs.
            wait_s: Seconds to wait for the first training step of a run, once it was found.
            output: Where findings are printed, a line each, with the name of the run.
            snapshots: Where snapshots are published for other threads.
            clock: The time.
            pause: Waits so many seconds, or less, in the middle of a turn; returns False to end the wait.
            member: Makes the member of a run, from its path, its store and what all members have in common.
        """
        self._store, self._audience, self._snapshots, self._clock = store, audience, snapshots, clock.monotonic
        self._pause, self._timing, self._member = pause, config.timing, member
        #: Which of two values of a pair holds: of a folder, or of an object store.
        self._kind = 0 if store.policy.cheap_lookups else 1
        self._common = Common(config, audience, output, wait_s, clock, self._go_on)
        self._search = RunSearch(store)
        self._waiting: list[tuple[float, int, Member]] = []
        self._numbers = itertools.count()
        self._asleep: deque[Member] = deque()
        self._past: deque[Member] = deque()
        self._notified: set[str] = set()
        self._search_s = self._publish_s = float("-inf")
        self._busy_s = self._clock()
        self._reading: set[Member] = set()
        self._in_a_row: set[Member] = set()
        self._unreachable_since_s: float | None = None
        self._pause_s = 0.0
        self._next_s = float("-inf")
        self._ending: list[Member] = []
        self._looked = False
        #: Runs found so far.
        self.found = 0
        #: Of these, those that had ended and were evaluated before.
        self.judged_before = 0

    @property
    def members(self) -> list[Member]:
        """Runs that are followed, or will be."""
        return [member for _, _, member in sorted(self._waiting, key=lambda item: item[:2])]

    @property
    def idle_s(self) -> float:
        """Seconds for which no run was followed or waited for."""
        return 0.0 if self._waiting else self._clock() - self._busy_s

    def turn(self) -> float:
        """Gives the run whose turn it is its share, or looks for new ones; returns the seconds until the next turn.

        Raises:
            InvalidValueError: There is too much below the prefix at the first look.
        """
        now_s = self._clock()
        if now_s >= self._next_s:
            due = bool(self._waiting) and self._waiting[0][0] <= now_s
            if now_s >= self._search_s and not (due and self._looked):  # however long a turn takes
                self._looked = True
                self._look(now_s)
            elif due:
                self._looked = False
                self._give_turn(now_s)
        if self._waiting:
            self._busy_s = self._clock()
        self._publish(now_s)
        due_s = min(self._search_s, self._waiting[0][0] if self._waiting else float("inf"))
        return max(0.0, max(due_s, self._next_s) - self._clock())

    def close(self, left_off: str, patience_s: float = 60.0) -> None:
        """Ends following all runs, in order.

        Args:
            left_off: Why, in words.
            patience_s: How long requests to an unreachable store are retried, for all runs together.
        """
        give_up_s = self._clock() + patience_s
        members = [*self.members, *self._asleep]
        self._waiting.clear()
        for member in members:
            member.close(left_off, max(0.0, give_up_s - self._clock()))
        self._publish(float("inf"))

    # ---------------------------------------------------------------- runs

    def _go_on(self, member: Member, seconds: float) -> bool:
        """Gives the other runs their turns for this time, while one can only wait; False to end the wait."""
        end_s = self._clock() + seconds
        self._ending.append(member)
        try:
            while (left_s := end_s - self._clock()) > 0:
                due_s = self.turn() if len(self._ending) <= _WAITING_AT_ONCE else left_s
                for other in self._ending[:-1]:  # those in whose turns this one has its own
                    other.stay()
                if not self._pause(max(0.0, min(end_s - self._clock(), due_s))):
                    return False
        finally:
            self._ending.pop()
        return True

    def _give_turn(self, now_s: float) -> None:
        _, _, member = heapq.heappop(self._waiting)
        if member.state is State.FOUND and len(self._reading) >= _CATCHING_UP:
            self._push(member, now_s + self._store.policy.intervals().poll_s)
            return
        try:
            again_s = member.turn()
        except BaseException:  # no fault of this run: it is closed with the others
            self._push(member, now_s)
            raise
        if member.state is State.LIVE and not member.caught_up:
            self._reading.add(member)
        else:
            self._reading.discard(member)
        self._note_unreachable(member, now_s)
        if member.state is State.ASLEEP:
            self._sleep(member)
        elif member.state is not State.SKIPPED:
            self._push(member, self._clock() + self._rest_s(member, again_s))

    def _rest_s(self, member: Member, again_s: float) -> float:
        """Seconds until the next turn of a run that wants it after ``again_s`` at the earliest."""
        if not again_s or member.unreachable:
            return again_s
        least_s = max(again_s, (len(self._waiting) + 1) / self._timing.turns_per_s[self._kind])
        if member.state is State.LIVE and not member.busy:
            quiet_s = self._timing.quiet_ratio * (self._clock() - member.news_s)
            least_s = max(least_s, min(quiet_s, self._timing.longest_rest_s[self._kind]))
        return min(least_s, max(again_s, self._timing.leased_s))

    def _sleep(self, member: Member) -> None:
        self._asleep.append(member)
        if member.judged_before:
            self.judged_before += 1
        elif member.snapshot() is not None:
            self._past.append(member)
            while len(self._past) > _SNAPSHOTS:
                self._past.popleft().forget()

    def _push(self, member: Member, due_s: float) -> None:
        heapq.heappush(self._waiting, (due_s, next(self._numbers), member))

    def _note_unreachable(self, member: Member, now_s: float) -> None:
        """Where a bucket is unreachable for one run after another, one of them retries for all."""
        if member.unreachable and self._store.policy.shared_outages:
            self._in_a_row.add(member)
            if len(self._in_a_row) >= _UNREACHABLE_IN_A_ROW or self._unreachable_since_s is not None:
                self._unreachable_since_s = now_s if self._unreachable_since_s is None else self._unreachable_since_s
                self._pause_s = min(self._timing.longest_retry_s, max(1.0, 2 * self._pause_s))
                self._next_s = self._clock() + self._pause_s
            return
        self._in_a_row.clear()
        if self._unreachable_since_s is not None:
            unreachable_s, self._unreachable_since_s, self._pause_s = now_s - self._unreachable_since_s, None, 0.0
            for _, _, other in self._waiting:
                if not other.unreachable:  # else its evaluator excuses the time itself
                    other.excuse(unreachable_s)

    # ---------------------------------------------------------------- finding runs

    def _look(self, now_s: float) -> None:
        """Looks for runs that are new, and for those that have ended and go on."""
        pause_s = self._timing.search_s[self._kind]
        try:
            self._add(self._search.look(), now_s)
            self._notified.difference_update(("unreachable", "too many"))
        except (StoreError, DamagedDataError) as error:
            self._notify_once("unreachable", f"new runs cannot be looked for now: {error}")
            pause_s = self._timing.search_s[1]
        except InvalidValueError as error:
            if not self.found:
                raise
            self._notify_once("too many", f"new runs cannot be found any more: {error}")
        for folder, reason in self._search.unreadable.items():
            self._notify_once(f"folder {folder}", f"[{printable(folder)}] is skipped: {reason}")
        self._wake()
        took_s = self._clock() - now_s
        requests_s = self._timing.search_request_s[0] * self._search.requests
        self._search_s = self._clock() + max(
            pause_s, requests_s if self._kind else self._timing.search_ratio[0] * took_s
        )

    def _add(self, new: Sequence[str], now_s: float) -> None:
        for path in new:
            store = self._store.below(path) if path else self._store
            name = path or self._store.location.rstrip("/").rpartition("/")[2]
            self._push(self._member(name, store, self._common), now_s)
        self.found += len(new)
        if new:
            self._busy_s = self._clock()

    def _wake(self) -> None:
        for _ in range(min(_ASKED_ASLEEP, len(self._asleep))):
            member = self._asleep.popleft()
            try:
                wakes = member.wakes()
            except WatchglassError:  # retried in its turn: a run that refuses keeps no other asleep
                self._asleep.append(member)
                if self._store.policy.shared_outages:
                    return
                continue
            if wakes:
                if member in self._past:
                    self._past.remove(member)
                self._push(member, self._clock())
            else:
                self._asleep.append(member)

    def _notify_once(self, what: str, sentence: str) -> None:
        if what not in self._notified:
            self._notified.add(what)
            self._audience.notified(sentence)

    def _publish(self, now_s: float) -> None:
        if self._snapshots is None or now_s < self._publish_s:
            return
        self._publish_s = now_s + self._timing.publish_s
        followed = [member.snapshot() for member in (*self._past, *self.members)]
        self._snapshots.publish(snapshot for snapshot in followed if snapshot is not None)
