"""Signals that reach a launcher while its training runs.

The launcher and the training share a process group, so that the training is in the foreground of the terminal as if
run by python. Ctrl-C therefore reaches both, and must not be passed on a second time, while ``kill PID`` reaches the
launcher alone and must be. The kernel says which it was (``siginfo.si_code``) to who collects blocked signals with
``sigtimedwait``. A signal that comes while nobody waits may go to a thread of some library that does not block it:
for those there are handlers, which know less but lose nothing.
"""

from __future__ import annotations

import select
import signal
import sys
from collections import deque
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

#: What is passed on. SIGUSR1 and SIGUSR2 are here because schedulers announce the end of an allocation with them.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


@dataclass(frozen=True)
class Arrival:
    """A signal that arrived.

    Attributes:
        number: Its number.
        shared: The training got it too: it went to the whole process group.
    """

    number: int
    shared: bool


class SignalWatch:
    """Context in which signals are collected by :meth:`wait` instead of acting on this process.

    Main thread only. Threads started inside the context leave the signals alone as well.

    Args:
        group_sender: Process id of somebody who is known to signal our whole process group.
    """

    def __init__(self, group_sender: int | None = None) -> None:
        self._group_sender = group_sender
        # Ignored signals (SIGHUP under nohup, SIGINT in a background job) stay ignored: for the training, too.
        self._numbers = {
            number
            for number in (getattr(signal, name, None) for name in _NAMES)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN
        }
        self._exact = hasattr(signal, "sigtimedwait")
        self._mask: set[int] = set()
        self._handlers: dict[int, Any] = {}
        self._arrived: deque[int] = deque()

    def __enter__(self) -> Self:
        for number in self._numbers:
            self._handlers[number] = signal.signal(number, self._note)
        if self._exact:
            self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers | {signal.SIGCHLD}))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        if self._exact:
            while signal.sigtimedwait(self._numbers | {signal.SIGCHLD}, 0) is not None:
                continue  # what nobody collected is over with the training
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wait(self, timeout_s: float) -> Arrival | None:
        """The next signal; None after ``timeout_s``, and where the system can tell, when a child has changed state."""
        if self._arrived:
            return self._noted()
        if not self._exact:  # macOS
            select.select([], [], [], min(timeout_s, 0.05))
            return self._noted()
        info = signal.sigtimedwait(self._numbers | {signal.SIGCHLD}, timeout_s)
        if info is None or info.si_signo == signal.SIGCHLD:
            return self._noted()
        from_kernel = info.si_code > 0  # and so from the terminal, to its foreground process group
        return Arrival(info.si_signo, shared=from_kernel or info.si_pid == self._group_sender)

    def restore_in_child(self) -> None:
        """Give a forked child the signals as they were; between fork and exec."""
        if self._exact:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._arrived.append(number)

    def _noted(self) -> Arrival | None:
        """The first signal that a handler took, with a guess at who sent it."""
        if not self._arrived:
            return None
        number = self._arrived.popleft()
        return Arrival(number, shared=number in (signal.SIGINT, signal.SIGQUIT) and sys.stdin.isatty())
