"""Fact ``stacks``: where all threads of a process are, once no step has begun for long.

The recorder's thread reads them. It stops nothing, installs no handler of a signal and needs no permission. It cannot
run while another thread holds the interpreter's lock in compiled code; then the evaluator reads the stacks with py-spy.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping

from watchglass.capture.port import Port
from watchglass.records import facts

#: Frames of a thread, the innermost ones, and threads that are recorded.
_MOST_FRAMES, _MOST_THREADS = 32, 16
#: Stacks of one process that are recorded.
_MOST = 16
_OURS = "watchglass-"


class HangStacks:
    """Records stacks after a silence, and again each time that it has doubled.

    Args:
        port: Gets the facts; the thread that makes this object trains.
        after_s: Seconds without a step before the first stacks. The silence must also be twice as long as the longest
            time between two steps so far.
        now_s: Monotonic clock in seconds.
        frames: The innermost frame of each thread.
    """

    def __init__(
        self,
        port: Port,
        *,
        after_s: float,
        now_s: Callable[[], float] = time.monotonic,
        frames: Callable[[], Mapping[int, types.FrameType]] = sys._current_frames,
    ) -> None:
        self._port, self._after_s, self._now_s, self._frames = port, after_s, now_s, frames
        self._step = -1
        self._since_s = now_s()
        self._longest_s = self._due_s = 0.0
        self._left = _MOST
        port.on_look.append(self.look)

    def look(self) -> None:
        """Record stacks if they are due. On the recorder's thread."""
        now_s, step = self._now_s(), self._port.clock.last_step
        silent_s = now_s - self._since_s
        if step != self._step:
            self._longest_s = max(self._longest_s, silent_s) if self._step >= 0 else 0.0
            self._step, self._since_s = step, now_s
            self._due_s = max(self._after_s, 2 * self._longest_s)
        elif step >= 0 and silent_s >= self._due_s and self._left:
            self._left -= 1
            self._due_s = 2 * silent_s
            self._port.add_fact(facts.Stacks(step, round(silent_s, 3), self._threads()), "recorder")

    def _threads(self) -> tuple[facts.StackedThread, ...]:
        """The thread that trains, then the others."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        training = self._port.guard.thread
        found = sorted(self._frames().items(), key=lambda each: (each[0] != training, each[0]))
        described = [
            facts.StackedThread(names.get(ident, str(ident)), ident == training, _described(frame))
            for ident, frame in found
            if ident != threading.get_ident() and not names.get(ident, "").startswith(_OURS)
        ]
        return tuple(described[:_MOST_THREADS])


def _described(frame: types.FrameType) -> tuple[tuple[str, int, str], ...]:
    frames = itertools.islice(traceback.walk_stack(frame), _MOST_FRAMES)
    return tuple((each.f_code.co_filename, line, each.f_code.co_name) for each, line in frames)
