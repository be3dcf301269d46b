"""The lifeline of a process that accompanies a training run, as that process sees it."""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from types import FrameType


class Lifeline:
    """A descriptor as a sign of life of this process's starter; the first line is for us, the rest is ignored.

    SIGTERM has the same meaning. It interrupts waiting and nothing else: not a rule, which would take it for an error
    in its code, and not the reading of a segment. Main thread only.

    Args:
        descriptor: The other end of the starter's socket or pipe, 0 for standard input.
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
        self._starter = os.getppid()
        self.open = True  #: Whether the starter lives, as far as it was read.
        self.terminated = False  #: Whether SIGTERM has come.
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

    def goes_on(self, seconds: float) -> bool:
        """Sleeps as :meth:`wait`; returns False once the starter has died, too.

        For a process whose starter is its parent: what that has forked may hold the lifeline open after its death.
        """
        return self.wait(seconds) and os.getppid() == self._starter

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True


def begin_beside() -> None:
    """Set the signals of a process that accompanies a training run: no signal to the whole process group ends it."""
    if hasattr(signal, "pthread_sigmask"):
        # A launcher that replaces a process collects blocked signals at that time, and a child inherits the blocks.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Ctrl-C goes to the whole process group: the training processes decide, and we follow them to the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _ANNOUNCEMENTS:
        if hasattr(signal, name):
            # A handler that does nothing: to ignore them would be inherited by what this process starts.
            signal.signal(getattr(signal, name), lambda number, frame: None)


#: Signals with which schedulers announce the end of an allocation, to every process of it.
_ANNOUNCEMENTS = ("SIGUSR1", "SIGUSR2", "SIGHUP")
