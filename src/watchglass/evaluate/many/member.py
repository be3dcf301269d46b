"""One run among many: opened when its turn comes, left to another evaluator, evaluated, asleep once it is judged."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TextIO, cast

from watchglass.config import EvaluatorConfig
from watchglass.errors import RunExistsError, StoreError, WatchglassError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.evaluation import Evaluation
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.journal import judged_attempt
from watchglass.evaluate.many.snapshot import RunSnapshot
from watchglass.store import (
    LEASE_EXPIRY_S,
    Claim,
    RenewalWatch,
    Store,
    has_attempt,
    is_alive,
    layout,
    lease_holder,
    read_manifest,
)
from watchglass.view import printable

#: Most bytes that a run may read in one turn, so that no run keeps the others waiting.
_TURN_BYTES = 2 << 20
#: Turns after which a run that was opened does not keep others from being opened.
_CATCHING_UP_TURNS = 4
#: Seconds until a run is tried again whose store refused, or whose end could not be read.
_AGAIN_S = 15.0


@dataclass(frozen=True)
class Followed:
    """How following a run came to its end.

    Attributes:
        evaluation: What the rules say, to the last step that was read.
        ended: How the training ended, in words: ``"finished"``, ``"stopped"``, ``"lost"``; "" where it may still go on.
        left_off: Why following ended before the training, in words; "" where it did not.
    """

    evaluation: Evaluation
    ended: str
    left_off: str


class State(Enum):
    """Where a run of many stands."""

    FOUND = "not opened yet"
    LIVE = "followed"
    HELD = "followed by another evaluator"
    ASLEEP = "nothing more is expected of it"
    SKIPPED = "cannot be followed"


class Audience(Protocol):
    """Who is told what becomes of the runs; called in the thread that follows them."""

    def begun(self, name: str, location: str) -> None:
        """A run is evaluated from now on."""

    def ended(self, name: str, location: str, followed: Followed) -> None:
        """A training has ended, or following did before; its evaluator is closed."""

    def skipped(self, name: str, location: str, reason: str) -> None:
        """A run cannot be followed, or nothing came of it."""

    def told(self, sentence: str) -> None:
        """Something worth a line."""


@dataclass(frozen=True)
class Common:
    """What all runs of a fleet have in common.

    Attributes:
        config: What evaluators are told, but for the run.
        audience: Who is told what becomes of the runs.
        output: Where findings are printed, a line each.
        wait_s: Seconds to wait for the first training step of a run.
        clock: Seconds on a clock that never jumps.
        pause: Lets the others go on for a moment, while a run that has ended waits for what its actions still deliver.
        engine: Makes what evaluates the rules; None for an engine in this process.
    """

    config: EvaluatorConfig
    audience: Audience
    output: TextIO | None
    wait_s: float
    clock: Callable[[], float]
    pause: Callable[[float], bool]
    engine: Callable[[EvaluatorConfig], Engine] | None = None


class Member:
    """A run of a fleet. For one thread; everything it does is done in :meth:`turn`.

    Args:
        name: Its path below the prefix.
        store: The store of the run, which is closed with it.
        common: What all runs have in common.
    """

    def __init__(self, name: str, store: Store, common: Common) -> None:
        self.name, self.location = printable(name), store.location
        self.state = State.FOUND
        #: Since when nothing new was read, on the fleet's clock.
        self.news_s = common.clock()
        #: Whether what was there when it was opened has been read, or it has had turns enough for that: one that
        #: writes faster than it is read never gets there.
        self.caught_up = False
        self._common, self._store = common, store
        self._evaluator: Evaluator | None = None
        self._attempt = -1
        self._first_step_s = 0.0
        self._holder: Claim | None = None
        self._watch: RenewalWatch | None = None
        self._refused = self._unbegun = False
        self._turns = 0
        self._last: RunSnapshot | None = None

    @property
    def away(self) -> bool:
        """Whether the store did not answer the last time."""
        return self._refused or (self._evaluator is not None and self._evaluator.away_s > 0)

    @property
    def busy(self) -> bool:
        """Whether an action has something under way, so that its turns must not become rare."""
        return self._evaluator is not None and self._evaluator.busy

    def snapshot(self) -> RunSnapshot | None:
        """What is known of it; None where it was not evaluated."""
        taken = self._evaluator.snapshot() if self._evaluator is not None else self._last
        return None if taken is None else replace(taken, name=self.name)

    def forget(self) -> None:
        """Keep nothing of its last evaluation."""
        self._last = None

    def excuse(self, seconds: float) -> None:
        """Nobody asked for so long."""
        if self._evaluator is not None:
            self._evaluator.excuse(seconds)

    def turn(self) -> float:
        """Does what there is to do; returns the seconds after which to come again at the earliest, 0 for more to read.

        Never raises for what is wrong with the run: that is told once, and :attr:`state` is then ``SKIPPED``.
        """
        try:
            again_s = self._live() if self._evaluator is not None else self._open()
            self._refused = False
            return again_s
        except RunExistsError:
            return self._is_held(None)
        except StoreError as error:
            if not self._refused:
                self._common.audience.told(f"[{self.name}] {error}; it is asked again")
            self._refused = True
            self._let_go(State.FOUND)
            return _AGAIN_S
        except WatchglassError as error:
            self._skip(str(error))
        except Exception as error:  # a fault of ours in one run must not take the others along
            self._skip(f"{type(error).__name__}: {error} (not expected)")
        return 0.0

    def wakes(self) -> bool:
        """Whether a run that is asleep has a new attempt, or its first worker.

        Raises:
            StoreError: The store refused.
        """
        wakes = has_attempt(self._store, self._attempt + 1)
        if not wakes and self._unbegun and self._attempt >= 0:
            wakes = bool(self._store.list(layout.workers(self._attempt)))
        if wakes:
            self.state, self._refused = State.FOUND, False
        return wakes

    def close(self, left_off: str, patience_s: float) -> None:
        """Ends following, in order; what was evaluated so far is told."""
        evaluator = self._evaluator
        if evaluator is None:
            self._store.close()
            return
        try:
            evaluator.finish(patience_s=patience_s, action_patience_s=patience_s)
            self._last = evaluator.snapshot()
            self._common.audience.ended(self.name, self.location, Followed(evaluator.evaluation(), "", left_off))
        except WatchglassError as error:
            self._skip(str(error))
        finally:
            self._let_go(State.ASLEEP)

    def _open(self) -> float:
        judged = judged_attempt(self._store)
        if judged is not None and not has_attempt(self._store, judged + 1):
            if self.state is State.HELD:
                self._common.audience.told(f"[{self.name}] was judged by the evaluator that followed it")
            self._attempt, self._unbegun = judged, False
            self._let_go(State.ASLEEP)
            return 0.0
        gone = None
        if self._watch is not None:
            _, silent_s = self._watch.look()
            gone = self._holder if silent_s >= LEASE_EXPIRY_S else None
        # Both before anything is built, for what is no run, or again and again for what somebody else follows.
        read_manifest(self._store)
        holder = lease_holder(self._store)
        if holder is not None and holder != gone and is_alive(holder) is not False:
            return self._is_held(holder)
        common = self._common
        output = None if common.output is None else cast(TextIO, Labelled(common.output, self.name))
        config = replace(common.config, run=self.location)
        evaluator = Evaluator(config, store=self._store, output=output, engine=common.engine)
        evaluator.open(lambda _: False, patience_s=0.0, gone=gone)
        self._evaluator, self.state, self.caught_up = evaluator, State.LIVE, False
        self._turns = 0
        self._watch = self._holder = None
        self.news_s = common.clock()
        self._first_step_s, self._unbegun = self.news_s + common.wait_s, False
        common.audience.begun(self.name, self.location)
        return 0.0

    def _live(self) -> float:
        evaluator = self._evaluator
        assert evaluator is not None
        new = evaluator.turn(_TURN_BYTES)
        now_s = self._common.clock()
        self._turns += 1
        if new:
            self.news_s = now_s
            self.caught_up = self.caught_up or self._turns >= _CATCHING_UP_TURNS
            return 0.0
        if evaluator.away_s:
            return evaluator.pause_s
        self.caught_up = True
        ended = evaluator.ended()
        if ended:
            return self._finish(evaluator, ended)
        if not evaluator.begun() and now_s > self._first_step_s:
            self._sleep()
            self._unbegun = True
            wait_s = self._common.wait_s
            reason = f"no training step came within {wait_s:g} s; it is followed when its first worker begins"
            self._common.audience.skipped(self.name, self.location, reason)
        return evaluator.pause_s

    def _finish(self, evaluator: Evaluator, ended: str) -> float:
        evaluator.finish(patience_s=0.0, pause=self._common.pause)
        evaluation = evaluator.evaluation()
        self._evaluator = None
        if not evaluation.ended:  # the store has just gone away, or somebody has just begun
            self._let_go(State.FOUND)
            return _AGAIN_S
        self._last = evaluator.snapshot()
        self._sleep()
        self._common.audience.ended(self.name, self.location, Followed(evaluation, ended, ""))
        return 0.0

    def _sleep(self) -> None:
        """Remember the newest attempt there is, and let go of everything else."""
        self._attempt = -1
        judged = judged_attempt(self._store)
        if judged is not None:
            self._attempt = judged
        while judged is None and has_attempt(self._store, self._attempt + 1):
            self._attempt += 1
        self._let_go(State.ASLEEP)

    def _is_held(self, holder: Claim | None) -> float:
        self._let_go(State.HELD)
        try:
            holder = holder or lease_holder(self._store)
            if holder != self._holder or self._watch is None:
                # One that has just come has not been silent yet, however long the one before was.
                self._watch, self._holder = RenewalWatch(self._store, monotonic=self._common.clock), holder
                if holder is not None:
                    who = printable(f"process {holder.pid} on {holder.host}")
                    self._common.audience.told(f"[{self.name}] is followed by {who} and left to it")
        except WatchglassError:
            pass  # it is asked again
        return 2.0 if self._store.appends else 10.0

    def _skip(self, reason: str) -> None:
        self._let_go(State.SKIPPED)
        self._common.audience.skipped(self.name, self.location, reason)

    def _let_go(self, state: State) -> None:
        evaluator, self._evaluator = self._evaluator, None
        self.state, self.caught_up = state, False
        try:
            if evaluator is not None:
                evaluator.close()
        except WatchglassError:
            pass  # the lease ends when nobody renews it
        if state in (State.ASLEEP, State.SKIPPED):
            self._store.close()


class Labelled(io.TextIOBase):
    """What an evaluator prints, with the name of its run: ``watchglass: [name] ...``."""

    def __init__(self, output: TextIO, name: str) -> None:
        self._output, self._name = output, name

    def write(self, text: str) -> int:
        """Print a line that begins with the name of the product."""
        return self._output.write(text.replace("watchglass: ", f"watchglass: [{self._name}] ", 1))

    def flush(self) -> None:
        """Print it now."""
        self._output.flush()
