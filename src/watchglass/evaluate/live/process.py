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
import select
import signal
import socket
import stat
import sys
from contextlib import closing, suppress
from types import FrameType

from watchglass.config import EvaluatorConfig
from watchglass.diagnose import verdict
from watchglass.errors import StoreError, WatchglassError
from watchglass.evaluate.live import restart_without_rule
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.following import Following, take_turns
from watchglass.evaluate.live.journal import is_judged
from watchglass.records import as_json
from watchglass.run import open_run

#: Signals with which schedulers announce the end of an allocation, to every process of it.
_ANNOUNCEMENTS = ("SIGUSR1", "SIGUSR2", "SIGHUP")


class _Lifeline:
    """Standard input as a sign of life of this process's starter; the first line is for us, the rest is ignored.

    SIGTERM says the same in other words. It interrupts waiting and nothing else: not a rule, which would take it for
    an error in its code, and not the reading of a segment.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._answers: socket.socket | None = None
        with suppress(OSError):  # a pipe takes no answers
            self._answers = socket.socket(fileno=os.dup(descriptor))
        self._woken, waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.open = True
        self.terminated = False
        signal.signal(signal.SIGTERM, self._terminate)

    def first_line(self) -> bytes:
        """The first line; waits for it. Empty where the lifeline closes before."""
        line = b""
        while b"\n" not in line:
            more = b""
            with suppress(ConnectionResetError):
                more = os.read(self._descriptor, 65536)
            if not more:
                self.open = False
                break
            line += more
        return line.partition(b"\n")[0]

    def answer(self) -> None:
        """Send the starter a sign of life; returns at once, and does nothing where no starter listens."""
        if self._answers is not None:
            with suppress(OSError):
                self._answers.send(b".", socket.MSG_DONTWAIT)

    def pause(self, seconds: float) -> bool:
        """Sleeps; returns False once SIGTERM has come."""
        self.wait(seconds)
        return not self.terminated

    def wait(self, seconds: float) -> bool:
        """Sleeps, but wakes when the lifeline closes; returns False once it is closed or SIGTERM has come."""
        self.answer()
        watched = [self._woken, self._descriptor] if self.open else [self._woken]
        try:
            ready, _, _ = select.select(watched, [], [], 0.0 if self.terminated else seconds)
            if self._woken in ready:
                os.read(
                    self._woken, 4096
                )  # by any signal, also of a rule that is timed out: left there, it wakes for ever
            if self._descriptor in ready and not os.read(self._descriptor, 4096):
                self.open = False
        except (OSError, ValueError):
            self.open = False
        return self.open and not self.terminated

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True


def main(arguments: list[str]) -> int:
    """Runs the evaluator process, with an :class:`EvaluatorConfig` as JSON on stdin. Returns its exit status."""
    if arguments:
        print(
            "usage: python -m watchglass.evaluate, with an EvaluatorConfig as a line of JSON on stdin", file=sys.stderr
        )
        return 2
    if hasattr(signal, "pthread_sigmask"):
        # A launcher that replaces an evaluator collects blocked signals at that time, and a child inherits the blocks.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Ctrl-C goes to the whole process group: the training processes decide, and the evaluator follows them to the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _ANNOUNCEMENTS:
        if hasattr(signal, name):
            # A handler that does nothing: to ignore them would be inherited by what actions start.
            signal.signal(getattr(signal, name), lambda number, frame: None)
    answer = _answer_file()
    lifeline = _Lifeline(0)
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
