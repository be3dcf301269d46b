"""Following one run, turn by turn until it ends: alone, under its launcher, or as one of many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TextIO

from watchglass.config import Clock, EvaluatorConfig
from watchglass.errors import MissingFileError, RunExistsError
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.snapshot import Snapshots
from watchglass.records import Evaluation
from watchglass.store import Store, layout, open_store

#: Why following ended before the run did, where nothing was wrong.
INTERRUPTED, OUT_OF_TIME = "interrupted", "the time is over"

#: Waits so many seconds, or less; returns False to end following.
Pause = Callable[[float], bool]


@dataclass(frozen=True)
class Followed:
    """How following a run ended."""

    evaluation: Evaluation  #: What the rules found, up to the last step that was read.
    ended: str  #: How the run ended, in words: ``"finished"``, ``"stopped"``, ``"lost"``; "" where it may still go on.
    left_off: str  #: Why following ended before the run, in words; "" where it did not.


class Following:
    """A run and its evaluator, turn by turn until the run ends. For one thread.

    Args:
        evaluator: The evaluator of the run; open before the first turn.
        how_ended: How the run ended, in words, and "" while it continues; :meth:`Evaluator.ended` if None.
        wait_s: Seconds to wait for the first training step; the time for which the store is unreachable does not count.
        clock: The time.

    Attributes:
        evaluator: The evaluator.
        has_news: Whether the last turn read anything.
        ended: How the run ended, in words; "" while it continues.
        is_late: Whether no training step came in time.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        how_ended: Callable[[], str] | None = None,
        wait_s: float = math.inf,
        clock: Clock = time,
    ) -> None:
        self.evaluator, self._clock = evaluator, clock.monotonic
        self._how_ended = how_ended if how_ended is not None else evaluator.ended
        self._first_step_s = clock.monotonic() + wait_s
        self.ended, self.has_news, self.is_late = "", False, False

    def turn(self, max_bytes: int = 16 << 20) -> float:
        """Evaluates what is new; returns the seconds until the next turn, 0 where there may be more.

        Args:
            max_bytes: Approximate limit of the bytes that are read.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        evaluator = self.evaluator
        unreachable_s = evaluator.unreachable_s
        self.has_news = evaluator.turn(max_bytes)
        if not evaluator.unreachable_s:
            self._first_step_s += unreachable_s
        if self.has_news:
            return 0.0
        self.ended = self._how_ended()
        waits = not (self.ended or evaluator.unreachable_s or evaluator.begun())
        self.is_late = waits and self._clock() > self._first_step_s
        return evaluator.pause_s

    def excuse(self, seconds: float) -> None:
        """Note how long the store was not read: nothing counts as silent or late because of that."""
        self._first_step_s += seconds
        self.evaluator.excuse(seconds)

    def finish(self, left_off: str = "", **waiting: Any) -> Followed:
        """Ends following, see :meth:`Evaluator.finish`, which takes the other arguments.

        Args:
            left_off: Why following ends before the run, in words.
            waiting: How long to wait for store and deliveries.
        """
        self.evaluator.finish(**waiting)
        evaluation = self.evaluator.evaluation()
        ended = self.ended if evaluation.ended and not left_off else ""
        return Followed(evaluation, ended, left_off or ("" if ended else "store unreachable"))


def take_turns(
    turn: Callable[[], float], is_over: Callable[[], bool], pause: Pause, timeout_s: float | None = None
) -> str:
    """Takes turns until following is over; returns why it ended before that, in words; "" where it did not.

    Args:
        turn: Returns the seconds until the next turn.
        is_over: Asked after each turn.
        pause: Waits.
        timeout_s: Seconds after which following ends, None for no limit.
    """
    end_s = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    while True:
        pause_s = turn()
        if is_over():
            return ""
        if not pause(max(0.0, min(pause_s, end_s - time.monotonic()))):
            return INTERRUPTED
        if time.monotonic() >= end_s:
            return OUT_OF_TIME


def follow(
    config: EvaluatorConfig,
    pause: Pause,
    *,
    wait_s: float = 600.0,
    timeout_s: float | None = None,
    output: TextIO | None = None,
    snapshots: Snapshots | None = None,
    clock: Clock = time,
) -> Followed:
    """Evaluates a run while it is written, until it ends.

    Args:
        config: What to follow, with which rules.
        pause: Waits so many seconds, or less; returns False to end following.
        wait_s: Seconds to wait for the first training step.
        timeout_s: Seconds after which following ends, None for no limit.
        output: Where findings are printed, a line each.
        snapshots: Where snapshots are published for other threads.
        clock: The time.

    Raises:
        MissingFileError: There is no run, or no training step came within ``wait_s``; or the run was removed meanwhile.
        RunExistsError: Another evaluator writes the journal of the run.
        WatchglassError: The run or a rule is not right.
    """
    published = snapshots or Snapshots()
    with closing(open_store(config.run)) as store:
        try:
            evaluator = Evaluator(config, store=store, output=output, clock=clock)
            evaluator.open(pause, patience_s=0.0)
            with closing(evaluator):
                following = Following(evaluator, wait_s=wait_s, clock=clock)

                def turn() -> float:
                    pause_s = following.turn()
                    published.publish([evaluator.snapshot()])
                    if following.is_late:
                        raise MissingFileError(
                            f"no training step was recorded in {config.run} within {wait_s:g} s; check that the script "
                            "runs and that its framework is supported, or wait longer with --wait"
                        )
                    return pause_s

                left_off = take_turns(turn, lambda: bool(following.ended), pause, timeout_s)
                waiting: dict[str, Any] = {"patience_s": 0.0} if left_off == INTERRUPTED else {"pause": pause}
                followed = following.finish(left_off, **waiting)
                published.publish([evaluator.snapshot()])
                return followed
        except (RunExistsError, MissingFileError):
            if not was_removed(store):
                raise
            raise MissingFileError(
                f"{config.run} was removed while it was followed; start the run again, then follow it again"
            ) from None


def was_removed(store: Store) -> bool:
    """Whether the run was removed since it was opened. Then what an evaluator wrote since is removed as well.

    It would keep a run from being begun there again.

    Raises:
        StoreError: The store refused.
    """
    if store.size(layout.MANIFEST) is not None:
        return False
    store.delete(layout.LEASE_RENEWED)
    store.prune()
    return True
