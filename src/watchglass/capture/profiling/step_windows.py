"""Windows of training steps in which a profiler records, whichever it is: when they begin and end, and what is refused.

A window opens and closes between two steps. The training thread only starts and stops the profiler; the recorder's
thread reads the results. A script's own profiler has precedence. No step has two profilers, since each would time the
other.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns
from typing import Any, ClassVar

from watchglass.capture.guard import harmless
from watchglass.capture.port import Port
from watchglass.capture.profiling.windows import DueWindow, OpenWindow, WindowFacts, WindowProfiler
from watchglass.config import ProfiledRange
from watchglass.records import COMPARED_STEPS

#: Held while windows begin and end: any thread of the script may begin to profile itself, or fork.
_changing = threading.RLock()
#: The windows of all hooks.
_all: weakref.WeakSet[StepWindows] = weakref.WeakSet()


class StepBoundaries(ABC):
    """Where a window may begin or end: between two training steps of one loop."""

    #: Why a window does not begin if no boundary comes, as a clause.
    missing: ClassVar[str]

    @abstractmethod
    def listen(self, passed: Callable[[], None]) -> Callable[[], None]:
        """Call ``passed`` in the training thread where a step has ended; returns an undo function."""

    def obstacle(self) -> str:
        """Why no window begins at the present boundary, as a clause; "" if one can."""
        return ""


class StepWindows:
    """Runs a profiler in windows, of the configuration and requested later. Without one it registers nothing.

    A requested window begins at its step, or as soon after it as it can.

    Args:
        port: Gets the results, and names the windows.
        profiler: The profiler.
        boundaries: Where windows begin and end.
        together: The windows of all profilers of this process, which may not overlap. More may be added later.
    """

    def __init__(
        self, port: Port, profiler: WindowProfiler, boundaries: StepBoundaries, together: Sequence[StepWindows]
    ) -> None:
        self._port, self._profiler, self._boundaries, self._together = port, profiler, boundaries, together
        # Another loop trains, and has the windows.
        self._gone = False
        self._thread = threading.get_ident()
        self._facts = WindowFacts(port.add_fact, profiler)
        self._due: list[DueWindow] = []
        self._open: OpenWindow | None = None
        # Of the last steps outside windows.
        self._times_s: deque[float] = deque(maxlen=COMPARED_STEPS)
        # The last time between two steps: which one came next, and when; None before the first update.
        self._boundary: tuple[int, int] | None = None
        # The step before which no window begins.
        self._earliest = 0
        # Time of the first update, from which windows of seconds count.
        self._begun_ns = 0
        self._configured: tuple[ProfiledRange, ...] = ()
        self._undo: Callable[[], None] = _nothing
        self._leave_script: Callable[[], None] | None = None
        port.on_configured.append(self._configure)
        port.changes.on_window.append(self._requested)
        port.on_look.append(self._look)
        port.on_end.append(self._run_ends)
        port.detach_with(self._detach)
        _all.add(self)
        self._configure()

    @property
    def used(self) -> bool:
        """Whether a step has ended at which a window could begin or end."""
        return self._boundary is not None

    def give_way(self) -> list[tuple[str, DueWindow]]:
        """Another loop has the windows from now on; returns those that were requested, with their profilers."""
        self._undo()
        self._gone, due = True, self._due
        self._due, self._undo = [], _nothing
        return [(self._profiler.kind, each) for each in due if each.request is not None]

    def take_over(self, requested: Iterable[tuple[str, DueWindow]]) -> None:
        """Take the windows of this profiler that another loop has given away."""
        own = [window for kind, window in requested if kind == self._profiler.kind]
        if own:
            self._await([*self._due, *own])

    def _configure(self) -> None:
        windows = self._profiler.windows(self._port.config)
        if windows == self._configured or self._gone:
            return
        self._configured = windows
        begun = self._open.first + 1 if self._open is not None else 0
        requested = [window for window in self._due if window.request is not None]
        self._await([*requested, *(DueWindow(each) for each in windows if each.timed or each.start >= begun)])

    def _requested(self, kind: str, steps: range, request: int) -> bool:
        """Take a request for this profiler; returns whether it is one."""
        taken = kind == self._profiler.kind and not self._gone
        if taken:
            asked = self._port.clock.next_train_step
            self._await([*self._due, DueWindow(ProfiledRange(steps.start, steps.stop), request, asked)])
        return taken

    def _await(self, windows: Iterable[DueWindow]) -> None:
        """Listen for step boundaries while windows are due. Not to be called from a boundary callback."""
        with _changing:
            self._due = sorted(windows, key=lambda window: (window.range.timed, window.range.start))
        self._undo()
        needed = self._due or self._open is not None
        self._undo = self._boundaries.listen(self._passed) if needed else _nothing

    # -- in the training thread --------------------------------------------------------------------------------------

    def _passed(self) -> None:
        """A step is over, and the next window may begin here."""
        # It goes on listening: who tells boundaries may be going through its listeners.
        if self._open is None and not self._due and self._leave_script is None:
            return
        clock = self._port.clock
        if threading.get_ident() != self._thread or not clock.at_boundary:
            return
        step, now_ns = clock.next_train_step, monotonic_ns()
        self._begun_ns = self._begun_ns or now_ns
        with _changing:
            self._reach(step, now_ns)
            if self._open is None and self._due and step >= self._earliest:
                self._begin_next(step, now_ns)
            if self._open is None:
                self._leave()
        self._boundary = (step, monotonic_ns())

    def _reach(self, step: int, now_ns: int) -> None:
        """Count the time of the step before this boundary, and end a window that is over. Again, it changes nothing."""
        if self._boundary is not None and step > self._boundary[0]:
            seconds = (now_ns - self._boundary[1]) / 1e9 / (step - self._boundary[0])
            (self._times_s if self._open is None else self._open.inside_s).append(seconds)
        if self._open is not None and self._open.reach(step, now_ns - self._begun_ns):
            self._close()
        self._boundary = (step, monotonic_ns())

    def _begin_next(self, step: int, now_ns: int) -> None:
        """Begin the first window whose time has come and that is not refused."""
        for due in tuple(self._due):
            if due.is_reached(step, now_ns - self._begun_ns):
                self._due.remove(due)
                self._begin(due, step, now_ns)
                if self._open is not None:
                    return

    def _leave(self) -> None:
        """No window is open: what the script profiles needs no attention."""
        leave, self._leave_script = self._leave_script, None
        if leave is not None:
            leave()

    def _begin(self, window: DueWindow, step: int, now_ns: int) -> None:
        name = self._profiler.name
        try:
            obstacle = window.missed(step, now_ns - self._begun_ns) or self._overlapped(window, step, now_ns)
            obstacle = obstacle or self._boundaries.obstacle() or self._profiler.obstacle()
            if obstacle:
                self._facts.refuse(window, obstacle)
                return
            self._facts.read(writes=False)
            began_ns = monotonic_ns()
            if self._leave_script is None:
                self._leave_script = self._profiler.listen(self._port.guard, self._script_profiles)
            recording = self._profiler.start()
            spent_ns = monotonic_ns() - began_ns
            self._open = OpenWindow(window, recording, step, spent_ns, list(self._times_s), step)
        except Exception as error:  # of the profiler: the window is lost, capture goes on
            self._facts.refuse(window, f"{name} did not start: {type(error).__name__}: {error}")

    def _overlapped(self, window: DueWindow, step: int, now_ns: int) -> str:
        """Which other window has steps of a window that begins now, as a clause; "" for none."""
        end = step + window.range.stop - window.range.start
        for each in self._together:
            if each._open is not None:
                each._reach(step, now_ns)  # this may be its last boundary, which it has not heard of yet
            steps = [each._open.steps] if each._open is not None else []
            if window.request is not None:
                configured = (due.range for due in each._due if due.request is None)
                after = end + (self._profiler.apart if each is self else 0)
                steps += [due for due in configured if not due.timed and due.start < after]
            if steps:
                return f"it would overlap the window {steps[0]} of {each._profiler.name}"
        return ""

    def _close(self, note: str = "", *, again: bool = False) -> None:
        """End the window that is open. ``again``: without a whole step it may begin once more."""
        window, self._open = self._open, None
        assert window is not None
        self._earliest = window.reached + self._profiler.apart
        began_ns = monotonic_ns()
        try:
            self._profiler.stop(window.recording)
        except Exception as error:
            self._profiler.free(window.recording)
            self._facts.refuse(window.due, f"{self._profiler.name} did not stop: {type(error).__name__}: {error}")
            return
        window.end_ns = monotonic_ns() - began_ns
        window.note = window.note or note
        if window.inside_s:
            self._facts.add(window)
            return
        self._profiler.free(window.recording)
        later = window.later if again else None
        if later is not None:
            self._due.insert(0, later)
        else:
            self._facts.refuse(window.due, note)

    def _script_profiles(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The script is about to profile itself."""
        with _changing:
            if self._concerned:
                self._close(f"the script began to use {self._profiler.name} itself")

    @property
    def _concerned(self) -> bool:
        """Whether a window is open whose profiler this thread has."""
        return self._open is not None and (threading.get_ident() == self._thread or self._profiler.of_process)

    def forks(self) -> None:
        """The script forks: a profiler that the child could not stop would record there until it ends."""
        if not self._concerned or self._profiler.stops_in_child:
            return
        self._close("the script forked a process", again=True)

    def forked(self) -> None:
        """In the child: it does not profile."""
        window, self._open = self._open, None
        if window is not None and self._profiler.stops_in_child:
            self._profiler.stop(window.recording)

    def _run_ends(self) -> None:
        with _changing:
            if self._open is not None:
                self._close("the training run ended before its last step")
        step = self._port.clock.next_train_step
        for window in self._due if self._port.started else ():
            in_vain = self._boundary is None and window.waits_in_vain(step)
            self._facts.refuse(window, self._boundaries.missing if in_vain else window.never_began())
        self._due.clear()
        self._facts.read()

    def _detach(self) -> None:
        self._undo()
        with _changing:
            if self._open is not None:
                self._close("capture ended before its last step")
        self._facts.read()
        self._leave()

    # -- in the recorder's thread ------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._refuse_without_boundaries()
        self._facts.read()

    def _refuse_without_boundaries(self) -> None:
        """Refuse requested windows if no boundary comes: the process that asked would wait until the run ends."""
        step = self._port.clock.next_train_step
        with _changing:
            for window in tuple(self._due) if self._boundary is None else ():
                if window.request is not None and window.waits_in_vain(step):
                    self._due.remove(window)
                    self._facts.refuse(window, self._boundaries.missing)


def profile_windows(port: Port, profilers: Iterable[WindowProfiler], boundaries: StepBoundaries) -> None:
    """Profile windows of the steps of a loop. Of several loops in a process, that which trains first has them."""
    before: list[StepWindows] = port.windows
    if any(each.used for each in before):
        return
    given = [window for each in before for window in each.give_way()]
    windows: list[StepWindows] = []
    port.windows = windows
    for profiler in profilers:
        windows.append(StepWindows(port, profiler, boundaries, windows))
        windows[-1].take_over(given)


def _nothing() -> None: ...


def _before_fork() -> None:
    _changing.acquire()
    for windows in tuple(_all):
        harmless(windows.forks)()


def _after_fork_in_child() -> None:
    for windows in tuple(_all):
        harmless(windows.forked)()
    _changing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_changing.release, after_in_child=_after_fork_in_child)
