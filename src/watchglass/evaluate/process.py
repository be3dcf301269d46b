"""The evaluator as a process beside a training: follows one attempt while it trains, and ends with it.

Started by command line with a pipe as its standard input, its lifeline: when that closes, whoever started it has
ended, and the evaluator ends too as soon as every worker has left or is dead. It never outlives the training.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from types import FrameType

from watchglass.config import EvaluatorConfig
from watchglass.errors import WatchglassError
from watchglass.evaluate.evaluator import Evaluator


class _Lifeline:
    """Standard input as a sign of life of whoever started this process; what comes through it is thrown away."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.open = True

    def wait(self, seconds: float) -> bool:
        """Sleeps, but wakes when the lifeline closes; returns whether it is open."""
        if not self.open:
            time.sleep(seconds)
            return False
        try:
            ready, _, _ = select.select([self._descriptor], [], [], seconds)
            if ready and not os.read(self._descriptor, 4096):
                self.open = False
        except (OSError, ValueError):
            self.open = False
        return self.open


class _Terminated(Exception):
    """SIGTERM arrived."""


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def main(arguments: list[str]) -> int:
    """Runs the evaluator process; the one argument is an :class:`EvaluatorConfig` as JSON. Returns its exit status."""
    if len(arguments) != 1:
        print("usage: python -m watchglass.evaluate CONFIG_AS_JSON", file=sys.stderr)
        return 2
    # Ctrl-C goes to the whole process group: the training decides what it means, and we follow it to its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_sigterm)
    lifeline = _Lifeline(0)
    try:
        evaluator = Evaluator(EvaluatorConfig.from_json(arguments[0]), output=sys.stderr)
        evaluator.open(lifeline.wait)
    except WatchglassError as error:
        print(f"watchglass: {error}", file=sys.stderr)
        return 2
    except _Terminated:
        return 0
    try:
        while True:
            new = evaluator.turn()
            if not new and evaluator.over(lifeline_open=lifeline.open):
                break
            lifeline.wait(0.0 if new and lifeline.open else evaluator.pause_s)
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except WatchglassError as error:
        print(f"watchglass: {error}", file=sys.stderr)
        evaluator.close()
        return 2
    evaluator.finish()
    return 0
