"""The evaluator as a process beside a training run: follows one attempt while it trains, and ends with it.

Started by command line with a socket (or a pipe) as its standard input. The first line that comes through it is the
configuration. It is in no command line and no environment, which other users can read. The socket is then the
lifeline: when it closes, the starter has ended, and the evaluator ends as soon as every worker has left or is dead.
It never outlives the training run. In the other direction the evaluator writes a byte now and then, a sign of life.

Exit status: 0 when it ended in order, 2 when it printed why this run cannot be evaluated, 1 for a temporary fault.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from contextlib import closing, suppress

from watchglass.config import EvaluatorConfig
from watchglass.diagnose import verdict
from watchglass.errors import StoreError, WatchglassError
from watchglass.evaluate.live import restart_without_rule
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.following import Following, take_turns
from watchglass.records import as_json
from watchglass.run import is_judged, open_run
from watchglass.supervise import Lifeline, begin_beside


def main(arguments: list[str]) -> int:
    """Runs the evaluator process, with an :class:`EvaluatorConfig` as JSON on stdin. Returns its exit status."""
    if arguments:
        print(
            "usage: python -m watchglass.evaluate, with an EvaluatorConfig as a line of JSON on stdin", file=sys.stderr
        )
        return 2
    begin_beside()
    answer = _answer_file()
    lifeline = Lifeline(0)
    opened = False
    try:
        line = restart_without_rule.handed_over() or lifeline.first_line().decode()
        if not line:
            return 0  # the starter has ended before it sent the configuration
        config = EvaluatorConfig.from_line(line)
        evaluator = Evaluator(config, output=sys.stderr, at_work=lifeline.answer)
        restart_without_rule.allow(line)
        evaluator.open(lifeline.wait)
        opened = True
        with closing(evaluator):
            evaluator.introduce()
            following = Following(
                evaluator, how_ended=lambda: "over" if evaluator.over(lifeline_open=lifeline.open) else ""
            )
            take_turns(following.turn, lambda: bool(following.ended), lifeline.pause)
            following.finish(pause=lifeline.pause)
            evaluator.conclude()
        if answer is not None and not lifeline.terminated:
            _answer(config, answer)
    except WatchglassError as error:
        if lifeline.terminated and not opened:
            return 0
        print(f"watchglass: {error}", file=sys.stderr)
        return 1 if isinstance(error, StoreError) else 2  # a store may be reachable again for the next evaluator
    return 0


def _answer_file() -> int | None:
    """Descriptor of the file that waits for the verdict, None where the starter wants none.

    Standard output is that file. From here on it is nothing: a user's rule may print.
    """
    if not stat.S_ISREG(os.fstat(1).st_mode):
        return None
    descriptor = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    return descriptor


def _answer(config: EvaluatorConfig, descriptor: int) -> None:
    """Hand the verdict over to the starter, which would have to import all modules of this process to compute it.

    Without it, for whatever reason, the starter computes the verdict itself.
    """
    with suppress(Exception):
        run = open_run(config.run)
        if is_judged(run):
            found = verdict(run, causes=config.causes, price_per_hour=config.price_per_hour)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(as_json(found)).encode())
