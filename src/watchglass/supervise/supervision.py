"""Sees to it that an evaluator runs for as long as the training run does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from watchglass.config import EvaluatorConfig
from watchglass.errors import LaunchError
from watchglass.supervise.process import EvaluatorProcess

#: Seconds before each replacement: there are so many. What ended the first may pass, as a lack of memory does.
PAUSES_S = (0.0, 5.0, 60.0)
#: Seconds without a sign of life after which an evaluator counts as hung: an evaluator shows one between two steps, at
#: each of which every rule may use up its time, and one at each look at the run.
SILENCE_S, _SILENT_RULES = 300.0, 10
#: A process that was stopped, or whose machine slept, finds much time passed: so much of it counts at once.
_LONGEST_LOOK_S = 5.0
#: Exit status of an evaluator that has printed why it cannot evaluate this run; another would not be able to either.
REFUSED = 2


class Supervision:
    """The evaluator of a training run: one process, or another in its place. For one thread.

    An evaluator that dies, or does not answer any more, is reported at once and replaced, up to three times. Its
    successor takes the journal over and goes on from there.

    Args:
        config: What is evaluated.
        environ: The environment of the processes.
        say: Takes a sentence for the user.
        start: Starts a process.
        monotonic: The clock.
    """

    def __init__(
        self,
        config: EvaluatorConfig,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        *,
        start: Callable[[EvaluatorConfig, Mapping[str, str]], EvaluatorProcess] = EvaluatorProcess,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._environ, self._say = config, dict(environ), say
        self._start_process, self._monotonic = start, monotonic
        self._silence_s = max(SILENCE_S, _SILENT_RULES * config.rule_timeout_s)
        self._process: EvaluatorProcess | None = None
        self._training_ended = False
        self._deaths = 0
        self._looked_s = monotonic()
        self._silent_s = 0.0
        # When the next process is due, None for never.
        self._due_s: float | None = self._looked_s
        #: Whether an evaluator came to the end of the training run.
        self.completed = False
        self.look()

    @property
    def over(self) -> bool:
        """Whether no evaluator runs and none will be started."""
        return self._process is None and self._due_s is None

    def look(self) -> None:
        """Start what is due, and replace what has died or hangs. Returns at once; to be called every second or so."""
        now_s = self._monotonic()
        passed_s, self._looked_s = min(now_s - self._looked_s, _LONGEST_LOOK_S), now_s
        if self._process is None:
            if self._due_s is not None and now_s >= self._due_s:
                self._start()
            return
        code = self._process.poll()
        if code is not None:
            self._process_ended(code)
        elif self._process.shows_life():
            self._silent_s = 0.0
        else:
            self._silent_s += passed_s
            if self._silent_s > self._silence_s:
                self._process.kill()
                self._replace(f"has not answered for {self._silent_s:.0f} s and was killed")

    def training_ended(self) -> None:
        """From now on an evaluator evaluates what is left and ends."""
        self._training_ended = True
        if self._process is not None:
            self._process.let_go()
        elif self._due_s is not None:
            self._due_s = self._monotonic()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the last evaluator to end, or its successor; returns whether all is :attr:`over`."""
        give_up_s = self._monotonic() + timeout_s
        self.training_ended()
        while not self.over and (left_s := give_up_s - self._monotonic()) > 0:
            if self._process is not None:
                self._process.wait(min(left_s, 1.0))
            self.look()
        return self.over

    def end(self) -> None:
        """Make the evaluator end now; nothing takes its place."""
        self._due_s, self._training_ended = None, True
        if self._process is not None:
            self._process.end()
            self._process = None

    def _start(self) -> None:
        config = replace(self._config, continues=self._deaths > 0)
        self._due_s, self._silent_s = None, 0.0
        try:
            self._process = self._start_process(config, self._environ)
        except LaunchError as error:
            self._replace(f"did not start ({error})")
            return
        if self._training_ended:
            self._process.let_go()

    def _process_ended(self, code: int) -> None:
        if code == 0 and self._training_ended:
            self._process = None
            self.completed = True
        elif code == REFUSED:
            self._process = None
            self._say(f"the evaluator has ended, for the reason above; {self._later}")
        else:
            self._replace(_how(code))

    def _replace(self, how: str) -> None:
        """Report an end that nobody asked for, and plan the next start."""
        self._process = None
        pauses_s = PAUSES_S[self._deaths :]
        self._deaths += 1
        if not pauses_s:
            self._say(f"the evaluator {how}; it was the last of {self._deaths}: {self._unjudged}; {self._later}")
            return
        pause_s = 0.0 if self._training_ended else pauses_s[0]
        self._due_s = self._monotonic() + pause_s
        when = f" in {pause_s:.0f} s" if pause_s else ""
        self._say(
            f"the evaluator {how}; another one starts{when} ({self._deaths} of {len(PAUSES_S)}) and goes on from the "
            "journal"
        )
        if not pause_s:
            self.look()

    @property
    def _unjudged(self) -> str:
        stops = "" if self._config.stop_on is None else ", and no finding stops it"
        return f"this run is no longer evaluated{stops}"

    @property
    def _later(self) -> str:
        return f"to judge it later: watchglass check {self._config.run}"


def _how(code: int) -> str:
    """What a return code says of an end that nobody asked for."""
    if code > 0:
        return f"ended with exit status {code}"
    if code == 0:
        return "was asked to end although the training goes on"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    memory = " (the system does so when memory runs out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"
