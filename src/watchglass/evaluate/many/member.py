"""One run of many: opened in its turn, left to another evaluator, or evaluated to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Protocol, TextIO

from watchglass.config import Clock, EvaluatorConfig
from watchglass.errors import MissingFileError, NotARunError, RunExistsError, StoreError, WatchglassError, in_a_line
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.following import Followed, Following, was_removed
from watchglass.evaluate.live.restart_without_rule import own_lease
from watchglass.evaluate.live.snapshot import RunSnapshot
from watchglass.run import judged_attempt
from watchglass.store import (
    Claim,
    LeaseWatch,
    Store,
    has_attempt,
    layout,
    read_manifest,
)
from watchglass.view import printable

#: Most bytes that a run may read in one turn, so that no run keeps the others waiting.
_TURN_BYTES = 2 << 20
#: Turns after which a run that was opened does not keep others from being opened.
_CATCHING_UP_TURNS = 4


class State(Enum):
    """The state of one run of many."""

    FOUND = "not opened yet"
    LIVE = "followed"
    HELD = "followed by another evaluator"
    ASLEEP = "nothing more is expected of it"
    SKIPPED = "cannot be followed"


class Audience(Protocol):
    """Is notified of what happens to the runs, in the thread that follows them."""

    def begun(self, name: str, location: str) -> None:
        """A run is evaluated from now on."""

    def ended(self, name: str, location: str, followed: Followed) -> None:
        """A run has ended, or following did before; its evaluator is closed."""

    def skipped(self, name: str, location: str, reason: str) -> None:
        """A run cannot be followed, or recorded no step."""

    def notified(self, sentence: str) -> None:
        """A sentence for the user."""


@dataclass(frozen=True)
class Common:
    """Things that all runs of a fleet share."""

    config: EvaluatorConfig  #: The settings of evaluators, except the run.
    audience: Audience  #: Is notified of what happens to the runs.
    output: TextIO | None  #: Where findings are printed, a line each.
    wait_s: float  #: Seconds to wait for the first training step of a run.
    clock: Clock  #: The time.
    #: Gives the other runs their turns while a run that has ended waits for its deliveries; takes that run and seconds,
    #: and returns False to end the wait.
    pause: Callable[[Member, float], bool]


class Member:
    """A run of a fleet. For one thread; everything it does is done in :meth:`turn`.

    Args:
        name: Its path below the prefix.
        store: The store of the run, which is closed with it.
        common: What all runs have in common.
        evaluator: Makes the evaluator of the run.
    """

    def __init__(
        self, name: str, store: Store, common: Common, *, evaluator: Callable[..., Evaluator] = Evaluator
    ) -> None:
        self.name, self.location = printable(name), store.location
        self.state = State.FOUND
        #: Since when nothing new was read, on the fleet's clock.
        self.news_s = common.clock.monotonic()
        #: Whether it had ended and was evaluated before this fleet opened it.
        self.judged_before = False
        #: Whether everything was read that was there when it was opened. After some turns it counts as read: a run that
        #: writes faster than it is read never gets there.
        self.caught_up = False
        self._common, self._store, self._timing = common, store, common.config.timing
        self._evaluator = evaluator
        self._held_s = self._timing.held_s[0 if store.policy.cheap_lookups else 1]
        self._following: Following | None = None
        self._attempt = -1
        self._judged: int | None = None
        self._run_id = ""
        self._looked_s = float("-inf")
        self._lease = LeaseWatch(store, common.clock)
        #: The evaluator that the audience was notified of.
        self._notified: Claim | None = None
        self._refused = self._unbegun = self._known = False
        self._turns = 0
        self._last: RunSnapshot | None = None

    @property
    def unreachable(self) -> bool:
        """Whether the store refused in the last turn."""
        return self._refused or (self._following is not None and self._following.evaluator.unreachable_s > 0)

    @property
    def busy(self) -> bool:
        """Whether a stop or a delivery is under way, so that its turns must not become rare."""
        return self._following is not None and self._following.evaluator.busy

    def snapshot(self) -> RunSnapshot | None:
        """Its newest snapshot; None where it was not evaluated."""
        taken = self._following.evaluator.snapshot() if self._following is not None else self._last
        return None if taken is None else replace(taken, name=self.name)

    def forget(self) -> None:
        """Drop its last snapshot."""
        self._last = None

    def excuse(self, seconds: float) -> None:
        """See :meth:`Following.excuse`."""
        if self._following is not None:
            self._following.excuse(seconds)

    def stay(self) -> None:
        """Renews its lease while it waits for its last deliveries in the turn of another run."""
        if self._following is not None:
            with suppress(RunExistsError):  # all was evaluated, and either evaluator records what is delivered
                self._following.evaluator.stay()

    def turn(self) -> float:
        """Takes its turn; returns the least seconds until the next one, 0 where there is more to read.

        Raises nothing for a fault of the run: the audience is notified once, and :attr:`state` is then ``SKIPPED``.
        """
        try:
            again_s = self._live(self._following) if self._following is not None else self._open()
            self._refused = False
            return again_s
        except RunExistsError:
            with suppress(WatchglassError):  # the next turn tries again
                self._lease.holds()
            return self._is_held()
        except StoreError as error:
            if not self._refused:
                self._common.audience.notified(f"[{self.name}] {error}; retrying")
            self._refused = True
            self._let_go(State.FOUND)
            return self._timing.again_s
        except BrokenPipeError:
            raise  # the reader of the output is gone: no fault of this run
        except Exception as error:  # a fault of watchglass in one run must not end the others
            self._skip(in_a_line(error))
        return 0.0

    def wakes(self) -> bool:
        """Whether a run that is asleep has a new attempt, or its first worker, or was replaced by another run.

        Raises:
            StoreError: The store refused.
        """
        # The record of the evaluation goes with a run that is removed; another run in its place has none.
        wakes = judged_attempt(self._store) != self._judged or has_attempt(self._store, self._attempt + 1)
        if not wakes and self._unbegun and self._attempt >= 0:
            wakes = bool(self._store.list(layout.workers(self._attempt)))
        if wakes:
            self.state, self._refused = State.FOUND, False
        return wakes

    def close(self, left_off: str, patience_s: float) -> None:
        """Ends following, in order, and reports the evaluation so far."""
        following = self._following
        if following is None:
            self._store.close()
            return
        try:
            followed = following.finish(left_off, patience_s=patience_s, action_patience_s=patience_s)
            self._last = following.evaluator.snapshot()
            self._common.audience.ended(self.name, self.location, followed)
        except BrokenPipeError:
            raise
        except Exception as error:
            self._skip(in_a_line(error))
        finally:
            self._let_go(State.ASLEEP)

    def _open(self) -> float:
        if self._lease.renewed():  # its evaluator lives, and has not reached the end
            return self._held_s
        judged = judged_attempt(self._store)
        if judged is not None and not has_attempt(self._store, judged + 1):
            if self.state is State.HELD:
                self._common.audience.notified(f"[{self.name}] was evaluated by another evaluator")
            self.judged_before, self._known = self.state is State.FOUND and not self._known, True
            self._attempt, self._judged, self._unbegun = judged, judged, False
            self._let_go(State.ASLEEP)
            return 0.0
        # Before rules are built, which is no use for a folder that is no run, or for a run of another evaluator.
        try:
            self._run_id = read_manifest(self._store).run_id
        except (MissingFileError, NotARunError):
            if self._store.size(layout.MANIFEST) is None:
                return self._gone(notified=self._notified is not None)
            raise
        # A lease from before a restart of this process is its own.
        if own_lease(self._store) is None and self._lease.holds():
            return self._is_held()
        self._begin(gone=self._lease.gone)
        return 0.0

    def _begin(self, gone: Claim | None) -> None:
        """Evaluate the run from now on; ``gone`` is a silent holder of its lease."""
        common = self._common
        config = replace(common.config, run=self.location)
        # Set before it is opened, so that an error while opening releases the lease.
        evaluator = self._evaluator(
            config, store=self._store, output=common.output, label=f"[{self.name}] ", clock=common.clock
        )
        self._following = Following(evaluator, wait_s=common.wait_s, clock=common.clock)
        evaluator.open(lambda _: False, patience_s=0.0, gone=gone)
        self.state, self.caught_up, self.judged_before, self._known = State.LIVE, False, False, True
        self._turns = 0
        self._forget_holder()
        self.news_s = self._looked_s = common.clock.monotonic()
        self._unbegun = False
        common.audience.begun(self.name, self.location)

    def _live(self, following: Following) -> float:
        if not self._is_same():
            return self._gone(notified=True)
        pause_s = following.turn(_TURN_BYTES)
        self._turns += 1
        if following.has_news:
            self.news_s = self._common.clock.monotonic()
            self.caught_up = self.caught_up or self._turns >= _CATCHING_UP_TURNS
        elif not self.unreachable:
            self.caught_up = True
        if following.ended:
            return self._finish(following)
        if following.is_late:
            self._sleep()
            self._unbegun = True
            wait_s = self._common.wait_s
            reason = f"no training step came within {wait_s:g} s; it is followed when its first worker begins"
            self._common.audience.skipped(self.name, self.location, reason)
        return pause_s

    def _is_same(self) -> bool:
        """Whether the run that was opened is still there, and no other in its place.

        In a folder this looks for the manifest before each turn. It reads the manifest at the interval of liveness, in
        an object store too. The evaluator reports a store that refuses.
        """
        store, now_s = self._store, self._common.clock.monotonic()
        try:
            if now_s < self._looked_s + store.policy.intervals().liveness_s:
                return not store.policy.cheap_lookups or store.size(layout.MANIFEST) is not None
            self._looked_s = now_s
            return read_manifest(store).run_id == self._run_id
        except StoreError:
            return True
        except WatchglassError:
            return False

    def _gone(self, *, notified: bool) -> float:
        """The run was removed, or replaced by another one, which is then found; drops everything about this one."""
        self._let_go(State.FOUND)
        self._forget_holder()
        self._last = None
        self.news_s = self._common.clock.monotonic()
        if not was_removed(self._store):
            self._common.audience.notified(
                f"[{self.name}] was replaced by another run, which is followed from its start"
            )
            return 0.0
        self._attempt, self._judged, self._unbegun = -1, None, False
        self._let_go(State.ASLEEP)
        if notified:
            self._common.audience.skipped(self.name, self.location, "it was removed while it was followed")
        return 0.0

    def _finish(self, following: Following) -> float:
        followed = following.finish(patience_s=self._timing.member_end_s, pause=partial(self._common.pause, self))
        self._following = None
        if not followed.ended:  # the store is unreachable since, or another worker or attempt has begun
            self._let_go(State.FOUND)
            return self._timing.again_s
        self._last = following.evaluator.snapshot()
        # Before the store is used again: if it refuses, nothing of the verdict is lost.
        self._common.audience.ended(self.name, self.location, followed)
        self._sleep()
        return 0.0

    def _sleep(self) -> None:
        """Keep the evaluated and the newest attempt, and close everything else."""
        self._judged = judged_attempt(self._store)
        self._attempt = -1 if self._judged is None else self._judged
        while self._judged is None and has_attempt(self._store, self._attempt + 1):
            self._attempt += 1
        self._let_go(State.ASLEEP)

    def _forget_holder(self) -> None:
        self._lease, self._notified = LeaseWatch(self._store, self._common.clock), None

    def _is_held(self) -> float:
        self._let_go(State.HELD)
        holder = self._lease.holder
        if holder is not None and holder != self._notified:
            self._notified = holder
            who = printable(f"process {holder.pid} on {holder.host}")
            self._common.audience.notified(f"[{self.name}] is followed by {who} and left to it")
        return self._held_s

    def _skip(self, reason: str) -> None:
        self._let_go(State.SKIPPED)
        self._common.audience.skipped(self.name, self.location, reason)

    def _let_go(self, state: State) -> None:
        following, self._following = self._following, None
        self.state, self.caught_up = state, False
        try:
            if following is not None:
                following.evaluator.close()
        except Exception:
            if state is not State.SKIPPED:  # else the fault is reported already
                self._common.audience.notified(f"[{self.name}] could not be closed in order; its lease expires")
        if state in (State.ASLEEP, State.SKIPPED):
            self._store.close()
