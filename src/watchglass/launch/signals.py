"""Signals to a launcher while its script runs.

Launcher and script share a process group, so that the script is in the foreground of the terminal as if run by python.
Ctrl-C therefore reaches both, and the launcher must not pass it on. ``kill PID`` reaches the launcher alone, which must
pass it on. For blocked signals, ``sigwaitinfo`` gives the source (``siginfo.si_code``). Between two waits a signal may
go to a thread of a library that does not block it. Handlers catch those signals, without their source.

A timer ends a wait, by SIGALRM, and not the timeout of ``sigtimedwait``: after a stop (Ctrl-Z) that is longer than the
timeout, CPython returns as a signal what happens to lie in memory. It could be one that ends the script.
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

#: Signals that are passed on. Schedulers announce the end of an allocation with SIGUSR1 and SIGUSR2.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


@dataclass(frozen=True)
class Arrival:
    """A signal that arrived."""

    number: int  #: Its number.
    shared: bool  #: Whether the script got it too, because it went to the whole process group.


class SignalWatch:
    """Context in which signals are collected by :meth:`wait` instead of acting on this process.

    Main thread only. Threads started inside the context block the signals too.

    Args:
        group_sender: Id of a process that signals the whole process group.
        exact: Ask the system for the source of a signal, where it is known.
    """

    def __init__(self, group_sender: int | None = None, *, exact: bool = hasattr(signal, "sigwaitinfo")) -> None:
        self._group_sender = group_sender
        # Ignored signals (SIGHUP under nohup, SIGINT in a background job) stay ignored, also for the script.
        self._numbers = {
            number
            for number in (getattr(signal, name, None) for name in _NAMES)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN
        }
        self._exact = exact
        self._awaited = self._numbers | ({signal.SIGCHLD, signal.SIGALRM} if exact else set())
        self._mask: set[int] = set()
        self._handlers: dict[int, Any] = {}
        self._arrived: deque[int] = deque()

    def __enter__(self) -> Self:
        for number in self._numbers:
            self._handlers[number] = signal.signal(number, self._note)
        if self._exact:
            if signal.getsignal(signal.SIGALRM) is not signal.SIG_IGN:  # that is the script's, too
                self._handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda number, frame: None)
            self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        if self._exact:
            while signal.sigtimedwait(self._awaited, 0) is not None:
                continue  # drop signals that arrived after the last wait
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def wait(self, timeout_s: float) -> Arrival | None:
        """The next signal; None after ``timeout_s`` or, on systems that report it, a change of a child process."""
        if self._arrived:
            return self._noted()
        if not self._exact:  # macOS
            select.select([], [], [], min(timeout_s, 0.05))
            return self._noted()
        # Again and again: the first SIGALRM may come before the wait, and go to another thread.
        timeout_s = max(timeout_s, 0.001)
        before = signal.setitimer(signal.ITIMER_REAL, timeout_s, timeout_s)
        info = signal.sigwaitinfo(self._awaited)
        signal.setitimer(signal.ITIMER_REAL, *before)
        if info.si_signo not in self._numbers:
            return self._noted()
        from_kernel = info.si_code > 0  # from the terminal, to its foreground process group
        return Arrival(info.si_signo, shared=from_kernel or info.si_pid == self._group_sender)

    def restore_in_child(self) -> None:
        """Restore the signal mask in a forked child, between fork and exec."""
        if self._exact:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._arrived.append(number)

    def _noted(self) -> Arrival | None:
        """The first signal that a handler caught, with a guess at its source."""
        if not self._arrived:
            return None
        number = self._arrived.popleft()
        return Arrival(number, shared=number in (signal.SIGINT, signal.SIGQUIT) and sys.stdin.isatty())
