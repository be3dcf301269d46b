"""Calls into rules that end in time, whatever the rule does.

A rule is somebody's code: it may loop for ever, sleep, or wait for a lock that nobody gives back. One thread watches
the calls of all guards of a process. It compares the number of the call that is under way with the one it saw before,
so that a call itself costs a few assignments and no timer. What takes too long gets an exception raised in its thread;
where that thread is the main one and waits in a system call, a signal wakes it (SIGURG, which is ignored wherever
nobody asked for it, so that one that comes too late does no harm). What even that does not reach is stuck in code that
is not Python, and only a new process can leave it behind.
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

_T = TypeVar("_T")

#: How often a call is told to end before it is taken for stuck.
_MOST_SHOTS = 8
#: Seconds between two looks at calls, at most, and between two times that a call is told to end.
_MOST_BETWEEN_S, _BETWEEN_SHOTS_S = 2.0, 0.25
#: Frames of a place that are told.
_MOST_FRAMES = 8

_SIGNAL = getattr(signal, "SIGURG", None)


class CallTimeout(Exception):
    """A call took too long and was ended.

    Attributes:
        place: Where it was, as lines of a traceback.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class _TimedOut(BaseException):
    """What is raised inside of a call; no ``except Exception`` of a rule swallows it."""


class Guard:
    """Ends calls that take too long. For one thread at a time; any number of them in a process.

    Args:
        timeout_s: Seconds that a call may take; it is ended somewhat later, within an eighth of that.
        stuck: Told where a call is that nothing ends, in the watching thread; it may return or start the process anew.
    """

    def __init__(self, timeout_s: float, stuck: Callable[[str], None] | None = None) -> None:
        self.timeout_s = timeout_s
        self.stuck = stuck
        #: The number of the call that is under way, 0 between calls. Written by the caller's thread only.
        self._call = 0
        self._number = 0
        self._thread = 0
        self._watched = False
        #: Both written by the watching thread: it is about to shoot; the call that it shot at.
        self._posting = False
        self._fired = 0
        self._place = ""
        # Of the watching thread alone: what it saw when it looked last.
        self._seen, self._spent_s, self._looked_s, self._shots = 0, 0.0, 0.0, 0

    def call(self, question: Callable[[], _T]) -> _T:
        """What ``question`` returns.

        Raises:
            CallTimeout: It took too long. Also where it swallowed the exception and returned after all.
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
        """No call is under way, and none is expected soon: nobody needs to watch. The next one is watched again."""
        with _lock:
            self._watched = False
            _guards.discard(self)
        _news.put(None)

    def __del__(self) -> None:
        _news.put(None)

    def look(self, now_s: float) -> None:
        """Ends the call that is under way if it takes too long. For the watching thread."""
        call = self._call
        if call == 0 or call != self._seen:
            self._seen, self._spent_s, self._shots = call, 0.0, 0
        else:
            # A process that was stopped, or a machine that slept, is not the call's fault.
            self._spent_s += min(now_s - self._looked_s, 2 * self.pause_s)
        self._looked_s = now_s
        if call and self._spent_s >= self.timeout_s + self._shots * _BETWEEN_SHOTS_S:
            self._shoot(call)

    @property
    def pause_s(self) -> float:
        """Seconds between two looks."""
        between = self.timeout_s / 8 if not self._shots else _BETWEEN_SHOTS_S
        return min(max(between, 0.005), _MOST_BETWEEN_S)

    def _be_watched(self) -> None:
        with _lock:
            _guards.add(self)
            self._watched = True
            if not _watcher:
                thread = threading.Thread(target=_watch, name="watchglass-rule-watch", daemon=True)
                _watcher.append(thread)
                thread.start()

    def _settle(self) -> None:
        """Waits for a shot that is being fired, and lets one that has not hit yet hit here.

        It is not taken back: CPython 3.11 then goes on looking for it, at every jump, and never gets any further where
        somebody traces or profiles. Whether one is still under way cannot be seen, so another takes its place.
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
            # The caller clears the number first and asks for this flag then: one of the two sees the other.
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
    """While this lasts, a call of the main thread that waits in a system call can be woken. Of no use in others."""
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
        # One that was not set from Python cannot be set from here either; the default is to do nothing.
        signal.signal(_SIGNAL, before if before is not None else signal.SIG_DFL)


def _wake(number: int, frame: Any) -> None:
    """The exception for the call is raised in here, as in any Python code of this thread that runs next."""
    handler = _before[0]
    if callable(handler):
        handler(number, frame)


def _raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise in a thread at its next step of Python; takes the place of what was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


def _place_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "a place that cannot be seen\n"
    frames = traceback.extract_stack(frame)
    ours = max((n for n, f in enumerate(frames) if f.filename == __file__), default=-1)
    return "".join(traceback.format_list(frames[ours + 1 :][-_MOST_FRAMES:]))


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()
_lock = threading.Lock()
#: The watching thread, while there is one.
_watcher: list[threading.Thread] = []
#: Wakes it. The one queue that may be written to from a finalizer.
_news: queue.SimpleQueue[None] = queue.SimpleQueue()
_woken = threading.Event()
_before: list[Any] = [None]


def _watch() -> None:
    """Looks at the calls of all guards, for as long as there are any."""
    while True:
        with _lock:
            guards = list(_guards)
            if not guards:
                _watcher.clear()
                return
        now_s = time.monotonic()
        for guard in guards:
            guard.look(now_s)
        pause_s = min(guard.pause_s for guard in guards)
        guards = []
        del guard  # else what nobody else has any more would never go
        with suppress(queue.Empty):
            _news.get(timeout=pause_s)


def _after_fork() -> None:
    """The thread did not come along."""
    global _lock, _news
    _lock, _news = threading.Lock(), queue.SimpleQueue()
    _watcher.clear()
    for guard in list(_guards):
        guard._watched = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
