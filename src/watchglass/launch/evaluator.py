"""The evaluator as a process: started by command line, held by a lifeline, waited for, never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from watchglass.config import EvaluatorConfig, environment
from watchglass.errors import LaunchError
from watchglass.launch.interpreter import without_bootstrap
from watchglass.launch.signals import SignalWatch

#: Seconds after which an evaluator that has not ended is told to; the second where other ranks may still train.
PATIENCE_S, PATIENCE_OF_RANKS_S = 600.0, 6 * 3600.0
#: Seconds after which one that was told to end is made to.
TERMINATION_S = 5.0


class EvaluatorProcess:
    """The evaluator of one run.

    Its standard input is a pipe whose other end only this process holds: its configuration goes in first, which may
    hold secrets and so is in no command line; when we end, in whatever way, the evaluator reads end of file, finishes
    what there is and ends. It has a session of its own, so that Ctrl-C, which is for the training, does not reach it.
    """

    def __init__(self, config: EvaluatorConfig, environ: Mapping[str, str], bootstrap: str) -> None:
        command = [sys.executable, "-m", "watchglass.evaluate"]
        try:
            self._process = subprocess.Popen(
                command,
                env=evaluator_environment(environ, bootstrap),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # the script's output is the script's alone
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the evaluator cannot be started: {error.strerror or error}") from None
        assert self._process.stdin is not None
        config.send(self._process.stdin)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def training_ended(self) -> None:
        """Let go of the lifeline: the evaluator evaluates what is left, writes the last statuses and ends."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:  # it has ended already
                return

    def wait(
        self, signals: SignalWatch, *, patience_s: float = PATIENCE_S, tick: Callable[[float], None] = lambda _: None
    ) -> int | None:
        """Wait for its end.

        Args:
            signals: Where Ctrl-C and SIGTERM arrive; one of them ends the wait and the evaluator.
            patience_s: Seconds before it is made to end.
            tick: Called a few times a second with the seconds waited, for progress.

        Returns:
            Its exit status, or None when it had to be ended.
        """
        self.training_ended()
        begin = time.monotonic()
        while self._process.poll() is None:
            waited = time.monotonic() - begin
            tick(waited)
            arrival = signals.wait(0.1)
            if waited > patience_s or (arrival is not None and arrival.number in (signal.SIGINT, signal.SIGTERM)):
                self.end()
                return None
        return self._process.returncode

    def end(self) -> None:
        """Make it end now."""
        self.training_ended()
        for stop in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                stop()
            try:
                self._process.wait(TERMINATION_S)
                return
            except subprocess.TimeoutExpired:
                continue


def evaluator_environment(environ: Mapping[str, str], bootstrap: str) -> dict[str, str]:
    """The environment of an evaluator, without our bootstrap on the way to its modules."""
    result = environment.for_evaluator(environ)
    python_path = without_bootstrap(result.pop("PYTHONPATH", None), bootstrap)
    return {**result, "PYTHONPATH": python_path} if python_path else result
