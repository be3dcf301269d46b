"""Processes that write the profiler report of a run: beside the run, and at its end without making the user wait."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

#: Niceness of the process: training runs go first.
_NICE = 10
#: Longest share of the time of a run that a process may take: a long run takes long to read.
_SHARE = 0.2
_END_S = 5.0
_COMMAND = (sys.executable, "-m", "watchglass", "report", "--profiler", "--force")


class ReportProcess:
    """A process that writes the report. It outlives this one, unless :meth:`end` ends it.

    Args:
        run: Location of the run.
        output: The file; None for the report inside the run.
        environ: The environment, of a process without capture.
        command: The program; a test may give another one.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, run: str, output: str | None, environ: Mapping[str, str], command: Sequence[str] = _COMMAND
    ) -> None:
        with tempfile.TemporaryFile() as errors:
            self._errors = os.dup(errors.fileno())
            try:
                self._process = subprocess.Popen(
                    [*command, *(() if output is None else ("-o", output)), "--", run],
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C is for the script
                    preexec_fn=lambda: os.nice(_NICE),
                )
            except OSError:
                self.leave()
                raise

    def wait(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended, after at most this time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def failure(self) -> str:
        """Why it failed, once it has ended; "" if it did not."""
        if not self._process.returncode:
            return ""
        lines = os.pread(self._errors, 1 << 16, 0).decode(errors="replace").strip().splitlines()
        ended = f"the process that writes it ended with status {self._process.returncode}"
        return lines[-1].removeprefix("watchglass: error: ") if lines else ended

    def end(self) -> None:
        """End it now."""
        if not self.wait():
            self._process.terminate()
            if not self.wait(_END_S):
                self._process.kill()
                self._process.wait()
        self.leave()

    def leave(self) -> None:
        """Forget it, whether it has ended or goes on."""
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1


class ReportRewriting:
    """Writes the report at an interval, each time in a process. For one thread; raises nothing, and never waits.

    A process that takes long is followed by a longer pause. The first failure is reported, later ones are not.

    Args:
        start: Starts a process.
        interval_s: Seconds between the beginnings of two processes.
        report: Takes a sentence about a failure.
        now: The clock, in seconds.
    """

    def __init__(
        self,
        start: Callable[[], ReportProcess],
        interval_s: float,
        report: Callable[[str], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._interval_s, self._report, self._now = start, interval_s, report, now
        self._begun_s = now()
        self._due_s = self._begun_s + interval_s
        self._process: ReportProcess | None = None
        self._failed = False

    def look(self) -> None:
        """Begin a process where one is due, and note the end of the last one."""
        if self._process is not None and self._process.wait():
            self._note(self._process.failure)
            self._process.leave()
            self._process = None
            spent_s = self._now() - self._begun_s
            self._due_s = max(self._due_s, self._begun_s + spent_s / _SHARE)
        if self._process is None and self._now() >= self._due_s:
            self._begun_s = self._now()
            self._due_s = self._begun_s + self._interval_s
            try:
                self._process = self._start()
            except OSError as error:
                self._note(error.strerror or str(error))

    def close(self) -> None:
        """End the process, if one runs."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _note(self, failure: str) -> None:
        if failure and not self._failed:
            self._failed = True
            self._report(f"no profiler report yet: {failure}; it is tried again")
