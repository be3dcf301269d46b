"""Following a run from anywhere: the store is all that a follower has of the training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TextIO

from watchglass.config import EvaluatorConfig
from watchglass.errors import MissingFileError
from watchglass.evaluate.evaluator import Evaluator
from watchglass.evaluate.replay import Evaluation
from watchglass.store import Store, layout, open_store, pace_of

#: Longest pause between looks for a run that is not there yet, in seconds.
_MOST_WAITING_S = 5.0
_INTERRUPTED = "interrupted"


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


def follow(
    config: EvaluatorConfig,
    pause: Callable[[float], bool],
    *,
    wait_s: float = 600.0,
    timeout_s: float | None = None,
    output: TextIO | None = None,
    begun: Callable[[], None] = lambda: None,
) -> Followed:
    """Evaluates a run while it is written, until its training has ended.

    Args:
        config: What to follow, with which rules.
        pause: Waits so many seconds, or less; returns False where following shall end.
        wait_s: Seconds to wait for the run, and then for its first training step.
        timeout_s: Seconds after which following ends, None for no limit.
        output: Where findings are printed, a line each.
        begun: Called once the run is there.

    Raises:
        MissingFileError: No run, or no training step, came within ``wait_s``.
        RunExistsError: Another evaluator writes the journal of the run.
        WatchglassError: The run or a rule is not right.
    """
    with closing(open_store(config.run)) as store:
        return _follow(config, store, pause, wait_s, timeout_s, output, begun)


def _follow(
    config: EvaluatorConfig,
    store: Store,
    pause: Callable[[float], bool],
    wait_s: float,
    timeout_s: float | None,
    output: TextIO | None,
    begun: Callable[[], None],
) -> Followed:
    end_s = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    if not _wait_for_run(store, pause, min(time.monotonic() + wait_s, end_s)):
        return Followed(Evaluation(config.run, (), (), 0, False), "", _INTERRUPTED)
    begun()
    evaluator = Evaluator(config, store=store, output=output)
    evaluator.open(pause, patience_s=0.0)
    ended = left_off = ""
    first_step_s = time.monotonic() + wait_s
    try:
        while not ended and not left_off:
            new = evaluator.turn()
            ended = "" if new else evaluator.ended()
            if not evaluator.begun() and not ended and time.monotonic() > first_step_s and not evaluator.away_s:
                raise MissingFileError(
                    f"no training step came in {config.run} within {wait_s:g} s; is the training running, and with a "
                    "framework that is watched? --wait gives it longer"
                )
            if not ended and not pause(0.0 if new else evaluator.pause_s):
                left_off = _INTERRUPTED
            elif not ended and time.monotonic() > end_s:
                left_off = f"the {timeout_s:g} s of --timeout are over"
        if left_off == _INTERRUPTED:
            evaluator.finish(patience_s=0.0)
        else:
            evaluator.finish()
    finally:
        evaluator.close()
    evaluation = evaluator.evaluation()
    if ended and not evaluation.ended:
        return Followed(evaluation, "", "the store does not answer any more")
    return Followed(evaluation, ended, left_off)


def _wait_for_run(store: Store, pause: Callable[[float], bool], give_up_s: float) -> bool:
    """Whether there is a run now; False where waiting was ended."""
    pause_s = pace_of(store).poll_s
    while store.size(layout.MANIFEST) is None:
        if time.monotonic() > give_up_s:
            raise MissingFileError(
                f"no run has begun at {store.location}; check the location, or wait longer for it with --wait"
            )
        if not pause(pause_s):
            return False
        pause_s = min(_MOST_WAITING_S, 1.5 * pause_s)
    return True
