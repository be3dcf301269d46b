"""One try of one delivery, in a separate process: started, polled, and ended with all processes that it started.

The process is ``python -m watchglass.actions``. It reads action and event as JSON from its standard input, because all
users can read a command line. It writes its answer, one line of JSON, to a file that has no other use, so that output
of a user's code is not taken for it. Both are files in memory: neither process waits until the other one reads. It
leads a session: all processes that it starts end with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from watchglass.config import TIMING, ActionSpec, EvaluatorTiming, environment
from watchglass.records import Event, as_json

#: An answer is shorter than this; the rest of a longer one is dropped.
_LONGEST_ANSWER = 64 << 10
#: Characters of a reason that are kept.
LONGEST_REASON = 2_000


@dataclass(frozen=True)
class DeliveryOutcome:
    """How a try ended."""

    done: bool  #: Whether the event was delivered.
    reason: str = ""  #: Why not, in a line.
    again: bool = True  #: Whether trying again makes sense.
    after_s: float | None = None  #: Seconds to wait before, at least; None for the usual pause.
    #: Of several receivers those that it has reached all the same, see :class:`~watchglass.Action`.
    arrived: tuple[int, ...] = ()


class Courier:
    """A delivery under way. For one thread; no method waits for the process, but for a moment for its death."""

    def __init__(
        self,
        spec: ActionSpec,
        event: Event,
        timeout_s: float,
        environ: Mapping[str, str] | None = None,
        *,
        arrived: Collection[int] = (),
        timing: EvaluatorTiming = TIMING.evaluator,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the process.

        Args:
            spec: The action.
            event: What to deliver.
            timeout_s: Seconds after which the process and all it has started are killed.
            environ: Its environment, but for what evaluators have otherwise; that of this process when not given.
            arrived: Of several receivers those that earlier tries have reached.
            timing: How long to wait for a process that was killed; then it is left.
            monotonic: The clock.

        Raises:
            OSError: The system starts no more processes.
        """
        self._timeout_s, self._death_s, self._monotonic = timeout_s, timing.death_s, monotonic
        self._until_s = monotonic() + timeout_s
        given = {
            "action": as_json(spec), "event": event.to_json(), "arrived": sorted(arrived),
            "limit_s": timeout_s + timing.orphaned_s,
        }  # fmt: skip
        self._answer = in_memory(b"")
        with in_memory(json.dumps(given).encode() + b"\n") as request:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "watchglass.actions", str(self._answer.fileno())],
                stdin=request,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(os.environ if environ is None else environ),
                pass_fds=(self._answer.fileno(),),
                start_new_session=True,
            )
        #: Process id, which is also that of its session and process group.
        self.pid = self._process.pid

    def poll(self) -> DeliveryOutcome | None:
        """How the delivery ended; None while it is under way."""
        ended = self._has_ended()
        answer = os.pread(self._answer.fileno(), _LONGEST_ANSWER, 0)
        if b"\n" in answer or ended:
            status = self._finish()
            return _read(answer) if b"\n" in answer else DeliveryOutcome(False, _last_words(status))
        if self._monotonic() >= self._until_s:
            self.end()
            return DeliveryOutcome(False, f"took longer than {self._timeout_s:g} s and was ended")
        return None

    def end(self) -> None:
        """Kills the process with all it has started; waits a moment for its death. A second call does nothing."""
        self._finish()

    def _has_ended(self) -> bool:
        """Whether the process has ended, which is then not yet known to the system as such: its id stays its own."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _finish(self) -> int:
        """Ends the whole group while its leader still holds the id, then lets go; returns the exit status."""
        if self._answer.closed:
            return int(self._process.returncode or 0)
        ended = self._has_ended()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            status = self._process.wait(self._death_s)
        except subprocess.TimeoutExpired:  # SIGKILL does not reach a process that waits for an unreachable file server
            status = -int(signal.SIGKILL)
        self._answer.close()
        return int(status) if ended else -int(signal.SIGKILL)


def in_memory(data: bytes) -> BinaryIO:
    """An open file that is in no folder, and on no disk where the system has such files; read from its start."""
    has_memory = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("watchglass"), "w+b") if has_memory else tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an evaluator: no module in the working directory replaces another one."""
    try:
        return environment.for_companion(environ)
    except FileNotFoundError:  # that folder was removed
        return dict(environ)


def _read(answer: bytes) -> DeliveryOutcome:
    try:
        data = json.loads(answer.partition(b"\n")[0])
        after_s = data.get("after_s")
        return DeliveryOutcome(
            bool(data["done"]), str(data.get("reason", ""))[:LONGEST_REASON], bool(data.get("again", True)),
            None if after_s is None else float(after_s), tuple(map(int, data.get("arrived", ()))),
        )  # fmt: skip
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return DeliveryOutcome(False, "gave an invalid answer")


def _last_words(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with exit status {status} and no answer"
