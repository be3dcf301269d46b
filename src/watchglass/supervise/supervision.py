"""Keeps an evaluator running until the end of the training run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from watchglass.config import EvaluatorConfig
from watchglass.errors import LaunchError
from watchglass.supervise.companion import CompanionProcess

#: Exit status of an evaluator that has printed why it cannot evaluate this run; a replacement would fail too.
REFUSED = 2


class Supervision:
    """The evaluator of a training run, replaced when it dies. For one thread.

    An evaluator that dies or hangs is reported at once and replaced, up to three times. Its successor takes over the
    journal and continues from there.

    Args:
        config: The configuration of the evaluator.
        environ: The environment of the processes.
        report: Takes a sentence for the user.
        start: Starts a process.
        monotonic: The clock.
    """

    def __init__(
        self,
        config: EvaluatorConfig,
        environ: Mapping[str, str],
        report: Callable[[str], None],
        *,
        start: Callable[[EvaluatorConfig, Mapping[str, str]], CompanionProcess] = CompanionProcess,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._environ, self._report = config, dict(environ), report
        self._start_process, self._monotonic = start, monotonic
        self._silence_s = max(config.timing.hung_s, config.timing.hung_rules * config.rule_timeout_s)
        self._process: CompanionProcess | None = None
        self._training_ended = False
        self._deaths = 0
        self._looked_s = monotonic()
        self._silent_s = 0.0
        # When the next process is due, None for never.
        self._due_s: float | None = self._looked_s
        #: Whether an evaluator reached the end of the training run.
        self.completed = False
        self.look()

    @property
    def over(self) -> bool:
        """Whether no evaluator runs and none will be started."""
        return self._process is None and self._due_s is None

    def look(self) -> None:
        """Start an evaluator that is due; replace one that died or hangs. Returns at once; called every second."""
        now_s = self._monotonic()
        passed_s, self._looked_s = min(now_s - self._looked_s, self._config.timing.longest_look_s), now_s
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
                self._replace(f"did not respond for {self._silent_s:.0f} s and was killed")

    def training_ended(self) -> None:
        """Let the evaluator evaluate the remaining steps and end."""
        self._training_ended = True
        if self._process is not None:
            self._process.let_go()
        elif self._due_s is not None:
            self._due_s = self._monotonic()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the evaluator or its successor; returns whether it is :attr:`over`."""
        give_up_s = self._monotonic() + timeout_s
        self.training_ended()
        while not self.over and (left_s := give_up_s - self._monotonic()) > 0:
            if self._process is not None:
                self._process.wait(min(left_s, 1.0))
            self.look()
        return self.over

    def end(self) -> None:
        """End the evaluator now, without a replacement."""
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
            self._report(f"the evaluator ended for the reason above; {self._later}")
        else:
            self._replace(how_ended(code))

    def _replace(self, how: str) -> None:
        """Report an unexpected end, and schedule the next start."""
        self._process = None
        pauses_s = self._config.timing.replacement_pauses_s
        self._deaths += 1
        if self._deaths > len(pauses_s):
            stops = "" if self._config.stop_on is None else " and will not be stopped by findings"
            unjudged = f"this run is no longer evaluated{stops}"
            self._report(f"the evaluator {how}, {self._deaths} times in all; {unjudged}; {self._later}")
            return
        pause_s = 0.0 if self._training_ended else pauses_s[self._deaths - 1]
        self._due_s = self._monotonic() + pause_s
        when = f" in {pause_s:.0f} s" if pause_s else ""
        self._report(
            f"the evaluator {how}; restarting{when} ({self._deaths} of {len(pauses_s)}), continuing from the journal"
        )
        if not pause_s:
            self.look()

    @property
    def _later(self) -> str:
        return f"to evaluate it later: watchglass check {self._config.run}"


def how_ended(code: int) -> str:
    """The reason of an unexpected end, by the return code."""
    if code > 0:
        return f"ended with exit status {code}"
    if code == 0:
        return "ended before the run did"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    memory = " (possibly out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{memory}"
