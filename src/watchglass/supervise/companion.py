"""A process that accompanies a training run: its configuration, lifeline, signs of life, and end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from watchglass.config import ProcessConfig
from watchglass.errors import LaunchError


class CompanionProcess:
    """A running evaluator or sampler. For one thread.

    Its standard input is a socket whose other end only this process holds. The configuration is sent through it,
    because others can read a command line or an environment, and a configuration may hold secrets. When this process
    ends, for any reason, the companion reads end of file, does the rest of its work and ends. In the other direction it
    writes a byte now and then, as a sign of life. It leads a session, so Ctrl-C does not reach it.

    Args:
        config: What it does, and the module that it runs.
        environ: The whole environment of the process.
        command: Interpreter and arguments; a test may give another one.
        answer: A file that becomes its standard output, for its result; None for none.

    Raises:
        LaunchError: The process cannot be started.
    """

    def __init__(
        self,
        config: ProcessConfig,
        environ: Mapping[str, str],
        command: Sequence[str] = (),
        *,
        answer: IO[bytes] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command or [sys.executable, "-m", config.module],
                env=dict(environ),
                stdin=theirs.fileno(),
                # Never the stdout of this process, which belongs to the script.
                stdout=subprocess.DEVNULL if answer is None else answer,
                stderr=None if config.speaks else subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise LaunchError(f"{config.title} cannot be started: {error.strerror or error}") from None
        finally:
            theirs.close()
        #: Its process id.
        self.pid = self._process.pid
        self._termination_s = config.termination_s
        self._lifeline: socket.socket | None = ours
        with suppress(OSError), ours.makefile("wb") as stdin:  # it may have ended already
            config.send(stdin)
        ours.setblocking(False)

    def poll(self) -> int | None:
        """Its return code as of :class:`subprocess.Popen`; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._close()
        return code

    def shows_life(self) -> bool:
        """Whether it has given a sign of life since the last call."""
        seen = False
        while self._lifeline is not None:
            try:
                if not self._lifeline.recv(4096):
                    break
            except OSError:  # no data, or it has ended
                break
            seen = True
        return seen

    def let_go(self) -> None:
        """End the lifeline after the end of the run: the process does the rest of its work and ends.

        Until then it still gives signs of life.
        """
        if self._lifeline is not None:
            with suppress(OSError):  # it has ended already
                # Processes forked since then hold the socket too.
                self._lifeline.shutdown(socket.SHUT_WR)

    def wait(self, timeout_s: float) -> int | None:
        """Its return code; None if it still runs after ``timeout_s``."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._close()
        return code

    def end(self) -> None:
        """End the process now."""
        self.let_go()
        for stop in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                stop()
            if self.wait(self._termination_s) is not None:
                return

    def kill(self) -> None:
        """Kill a process that hangs."""
        self.let_go()
        self._process.kill()
        self.wait(self._termination_s)
        self._close()

    def _close(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
