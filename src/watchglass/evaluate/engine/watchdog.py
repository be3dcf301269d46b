"""Calls into rules that end in time, even if the rule does not.

A rule is user code: it may loop forever, sleep, or wait for a lock that no thread releases. One thread watches the
calls of all watchdogs of a process. It compares the number of the present call with the number at its last check, so a
call costs a few assignments and no timer. The thread raises an exception in a call that takes too long. Where that call
waits in a system call of the main thread, a signal interrupts it: SIGURG, which is ignored by default, so a late one
does no harm. A call that does not react to these is stuck in code that is not Python. Only a new process ends it.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from watchglass.config import EvaluatorTiming

_T = TypeVar("_T")

#: Attempts to end a call before it counts as stuck.
_MOST_SHOTS = 8
#: Frames of a place that are reported.
_MOST_FRAMES = 8

_SIGNAL = getattr(signal, "SIGURG", None)


class CallTimeout(Exception):
    """A call took too long and was ended."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place  #: The place of the call, as lines of a traceback.


class _TimedOut(BaseException):
    """The exception inside a call; no ``except Exception`` of a rule catches it."""


class Watchdog:
    """Ends calls that take too long. For one thread at a time; any number of them in a process.

    Args:
        timeout_s: Seconds that a call may take; it is ended somewhat later, within an eighth of that.
        stuck: Called in the watching thread with the place of a stuck call; it may return, or restart the process.
        checks_s: See :attr:`EvaluatorTiming.call_checks_s`.
    """

    def __init__(
        self,
        timeout_s: float,
        stuck: Callable[[str], None] | None = None,
        checks_s: tuple[float, float] = EvaluatorTiming.call_checks_s,
    ) -> None:
        self.timeout_s, self._checks_s = timeout_s, checks_s
        self.stuck = stuck
        #: The number of the present call, 0 between calls. Written only by the caller's thread.
        self._call = 0
        self._number = 0
        self._thread = 0
        self._watched = False
        #: Both written by the watching thread: it is about to raise; the number of the call that it raised in.
        self._posting = False
        self._fired = 0
        self._place = ""
        # Only for the watching thread: its last check.
        self._seen, self._spent_s, self._looked_s, self._shots = 0, 0.0, 0.0, 0

    def call(self, question: Callable[[], _T]) -> _T:
        """The result of ``question``.

        Raises:
            CallTimeout: It took too long, also where it caught the exception and returned.
        """
        if not self._watched:
            self._be_watched()
        self._thread = threading.get_ident()
        self._number = number = self._number + 1
        self._fired = 0
        try:
            try:
                self._call = number
                answer = question()
            finally:
                self._call = 0
                if self._posting or self._fired:
                    self._settle()
        except _TimedOut:
            self._call = 0
            self._settle()
        except Exception:
            if self._fired != number:
                raise
        else:
            if self._fired != number:
                return answer
        self._fired = 0
        raise CallTimeout(self._place) from None

    def close(self) -> None:
        """Ends the watch between calls. The next call is watched again."""
        with _lock:
            self._watched = False
            _watchdogs.discard(self)
        _news.put(None)

    def __del__(self) -> None:
        _news.put(None)

    def look(self, now_s: float) -> None:
        """Ends the present call if it takes too long. For the watching thread."""
        call = self._call
        if call == 0 or call != self._seen:
            self._seen, self._spent_s, self._shots = call, 0.0, 0
        else:
            # The time of a suspended process or machine does not count.
            self._spent_s += min(now_s - self._looked_s, 2 * self.pause_s)
        self._looked_s = now_s
        if call and self._spent_s >= self.timeout_s + self._shots * self._checks_s[1]:
            self._shoot(call)

    @property
    def pause_s(self) -> float:
        """Seconds between two checks."""
        between = self.timeout_s / 8 if not self._shots else self._checks_s[1]
        return min(max(between, 0.005), self._checks_s[0])

    def _be_watched(self) -> None:
        with _lock:
            _watchdogs.add(self)
            self._watched = True
            if not _watcher:
                thread = threading.Thread(target=_watch, name="watchglass-rule-watch", daemon=True)
                _watcher.append(thread)
                thread.start()

    def _settle(self) -> None:
        """Waits for an exception that is being raised, and takes one that has not arrived yet.

        It is not revoked: CPython 3.11 would then look for it at every jump, and would never continue under a tracer or
        profiler. A pending exception cannot be seen, so another one replaces it.
        """
        hit = False
        while not hit:
            try:
                while self._posting:
                    time.sleep(0)
                if not self._fired:
                    return
                hit = True
                _raise_in(self._thread, _TimedOut)
                while True:
                    pass
            except _TimedOut:
                continue

    def _shoot(self, call: int) -> None:
        self._posting = True
        try:
            # The caller clears the number first and reads this flag then: one of the two threads sees the other.
            if self._call != call:
                return
            self._shots += 1
            if self._shots == 1:
                self._place = _place_of(self._thread)
            self._fired = call
            _raise_in(self._thread, _TimedOut)
            if _SIGNAL is not None and self._thread == threading.main_thread().ident and _woken.is_set():
                signal.pthread_kill(self._thread, _SIGNAL)
        finally:
            self._posting = False
        if self._shots == _MOST_SHOTS and self.stuck is not None and self._call == call:
            self.stuck(self._place)


@contextmanager
def wakeable() -> Iterator[None]:
    """Inside, a signal can interrupt a system call of the main thread. Without effect in other threads."""
    if _SIGNAL is None or threading.get_ident() != threading.main_thread().ident or _woken.is_set():
        yield
        return
    before = signal.signal(_SIGNAL, _wake)
    _before[0] = before
    _woken.set()
    try:
        yield
    finally:
        _woken.clear()
        # A handler that was not set by Python cannot be restored here; the default handler ignores the signal.
        signal.signal(_SIGNAL, before if before is not None else signal.SIG_DFL)


def _wake(number: int, frame: Any) -> None:
    """Lets Python code of this thread run, in which the exception for the call is raised."""
    handler = _before[0]
    if callable(handler):
        handler(number, frame)


def _raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise in a thread at its next Python instruction; replaces a pending exception."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


def _place_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "a place that cannot be seen\n"
    frames = traceback.extract_stack(frame)
    ours = max((n for n, f in enumerate(frames) if f.filename == __file__), default=-1)
    return "".join(traceback.format_list(frames[ours + 1 :][-_MOST_FRAMES:]))


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()
_lock = threading.Lock()
#: The watching thread, while there is one.
_watcher: list[threading.Thread] = []
#: Ends its pause. The only kind of queue that a finalizer may write to.
_news: queue.SimpleQueue[None] = queue.SimpleQueue()
_woken = threading.Event()
_before: list[Any] = [None]


def _watch() -> None:
    """Checks the calls of all watchdogs, while there are any."""
    while True:
        with _lock:
            watchdogs = list(_watchdogs)
            if not watchdogs:
                _watcher.clear()
                return
        now_s = time.monotonic()
        for watchdog in watchdogs:
            watchdog.look(now_s)
        pause_s = min(watchdog.pause_s for watchdog in watchdogs)
        watchdogs = []
        del watchdog  # else it would stay in memory
        with suppress(queue.Empty):
            _news.get(timeout=pause_s)


def _after_fork() -> None:
    """A forked child has no watching thread."""
    global _lock, _news
    _lock, _news = threading.Lock(), queue.SimpleQueue()
    _watcher.clear()
    for watchdog in list(_watchdogs):
        watchdog._watched = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
