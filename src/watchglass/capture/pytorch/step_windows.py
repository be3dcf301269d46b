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
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic_ns
from typing import Any, ClassVar

from torch.optim.optimizer import register_optimizer_step_post_hook

from watchglass.capture.guard import Guard, harmless
from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.config import MOST_PROFILED_STEPS, ProfiledRange, SessionConfig
from watchglass.records import COMPARED_STEPS, Fact, WindowCost, WindowFrame, WindowRefusal

#: Held while windows begin and end: any thread of the script may begin to profile itself, or fork.
_changing = threading.RLock()
#: Steps after which a requested window is refused if no optimizer has stepped meanwhile: house.
_PATIENCE_STEPS = 16
_NO_OPTIMIZER = "no optimizer of PyTorch has stepped in the training thread, which a window needs"
#: The windows of all hooks.
_all: weakref.WeakSet[StepWindows] = weakref.WeakSet()


class WindowProfiler(ABC):
    """One profiler of a process, for :class:`StepWindows`.

    All methods but :meth:`result`, and some calls of :meth:`stop`, are for the training thread. They may raise: the
    window is lost then, and refused.

    Attributes:
        kind: What requests call it, see :class:`~watchglass.control.ProfileWindow`; also the source of its facts.
        name: Its name in sentences.
        apart: Steps that lie between two of its windows, at least.
        of_process: Whether it is in the way of a profiler in any thread of the process, not only in its own.
        stops_in_child: Whether :meth:`stop` stops it in a forked process, too. Else a window ends before the script
            forks.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    apart: ClassVar[int] = 0
    of_process: ClassVar[bool] = False
    stops_in_child: ClassVar[bool] = False

    @abstractmethod
    def windows(self, config: SessionConfig) -> tuple[ProfiledRange, ...]:
        """The windows of this profiler that a configuration names."""

    @abstractmethod
    def obstacle(self) -> str:
        """Why it cannot start now, as a clause; "" if it can."""

    @abstractmethod
    def start(self) -> Any:
        """Start it; what is returned stands for the recording."""

    @abstractmethod
    def stop(self, recording: Any) -> None:
        """Stop it. Also after an exception nothing is profiled any more.

        In the training thread; of a profiler of the process, in any thread.
        """

    @abstractmethod
    def result(self, recording: Any, frame: WindowFrame, *, writes: bool) -> Fact:
        """What was recorded, as a fact.

        On the recorder's thread, as a rule. Else ``writes`` is False: the training thread waits to begin a window.

        Args:
            recording: Of :meth:`start`.
            frame: What the fact has beside the rows.
            writes: Whether files may be written.
        """

    @abstractmethod
    def free(self, recording: Any) -> None:
        """Free what a recording holds. Called once, at the latest before the next window."""

    @abstractmethod
    def listen(self, guard: Guard, before: Callable[[Any, Any], None]) -> Callable[[], None]:
        """Call ``before`` when the script is about to profile, itself; returns an undo function."""


@dataclass(frozen=True)
class _DueWindow:
    """A window that is still to come.

    Attributes:
        range: The TRAIN steps, or seconds.
        request: Number of the request on the running job; None if the configuration names it.
        asked: The step that came next when it was requested.
    """

    range: ProfiledRange
    request: int | None = None
    asked: int = 0


@dataclass
class _OpenWindow:
    """A window that is being recorded, or waits to be read.

    Attributes:
        due: The window.
        recording: What the profiler records.
        first: Its first step.
        begin_ns: Time to start it.
        outside_s: Times of the steps before.
        reached: The step that comes next.
        inside_s: Times of its steps so far.
        end_ns: Time to stop it.
        note: Why it ended early; "" if it did not.
    """

    due: _DueWindow
    recording: Any
    first: int
    begin_ns: int
    outside_s: list[float]
    reached: int
    inside_s: list[float] = field(default_factory=list)
    end_ns: int = 0
    note: str = ""

    @property
    def steps(self) -> ProfiledRange:
        """The steps, or seconds, that it has if it does not end early."""
        due = self.due.range
        return due if due.timed else ProfiledRange(self.first, self.first + due.stop - due.start)

    @property
    def later(self) -> _DueWindow | None:
        """The same window without its first step; None if it has no other."""
        due, first = self.due.range, self.first + 1
        if due.timed or self.due.request is not None:
            return self.due
        return replace(self.due, range=ProfiledRange(first, due.stop)) if first < due.stop else None

    @property
    def frame(self) -> WindowFrame:
        """What its fact has beside the rows."""
        outside = median(self.outside_s) if self.outside_s else float("nan")
        cost = WindowCost(median(self.inside_s), outside, self.begin_ns / 1e9, self.end_ns / 1e9)
        return WindowFrame(self.first, self.reached, cost, 0, self.note, self.due.request)


class StepWindows:
    """Runs a profiler in windows, of the configuration and requested later. Without one it registers nothing.

    A requested window begins at its step, or as soon after it as it can.

    Args:
        hook: Gets the results, and names the windows.
        profiler: The profiler.
        together: The windows of all profilers of this process, which may not overlap. More may be added later.
    """

    def __init__(self, hook: Hook, profiler: WindowProfiler, together: Sequence[StepWindows]) -> None:
        self._hook, self._profiler, self._together = hook, profiler, together
        self._thread = threading.get_ident()
        self._due: list[_DueWindow] = []
        self._open: _OpenWindow | None = None
        self._closed: deque[_OpenWindow] = deque()
        self._reading = threading.Lock()
        self._times_s: deque[float] = deque(maxlen=COMPARED_STEPS)
        self._boundary: tuple[int, int] | None = None
        # The step before which no window begins.
        self._earliest = 0
        # The first update, from which windows of seconds count.
        self._begun_ns = 0
        self._configured: tuple[ProfiledRange, ...] = ()
        self._undo: Callable[[], None] = _nothing
        self._leave_script: Callable[[], None] | None = None
        hook.on_configured.append(self._configure)
        hook.changes.on_window.append(self._requested)
        hook.on_look.append(self._look)
        hook.on_end.append(self._run_ends)
        hook.detach_with(self._detach)
        _all.add(self)
        self._configure()

    def _configure(self) -> None:
        windows = self._profiler.windows(self._hook.config)
        if windows == self._configured:
            return
        self._configured = windows
        begun = self._open.first + 1 if self._open is not None else 0
        requested = [window for window in self._due if window.request is not None]
        self._await([*requested, *(_DueWindow(each) for each in windows if each.timed or each.start >= begun)])

    def _requested(self, kind: str, steps: range, request: int) -> bool:
        """Take a request for this profiler; returns whether it is one."""
        if kind == self._profiler.kind:
            asked = self._hook.clock.next_train_step
            self._await([*self._due, _DueWindow(ProfiledRange(steps.start, steps.stop), request, asked)])
        return kind == self._profiler.kind

    def _await(self, windows: Iterable[_DueWindow]) -> None:
        """Listen for the windows to come. Not while PyTorch is going through its hooks."""
        with _changing:
            self._due = sorted(windows, key=lambda window: (window.range.timed, window.range.start))
        self._undo()
        after = self._hook.guard.shielded(self._updated, unless=compiling)
        needed = self._due or self._open is not None
        self._undo = register_optimizer_step_post_hook(after).remove if needed else _nothing

    # -- in the training thread --------------------------------------------------------------------------------------

    def _updated(self, optimizer: Any, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped: the step is over, and the next window may begin here."""
        # The hook stays registered: PyTorch is going through its hooks here.
        if self._open is None and not self._due and self._leave_script is None:
            return
        clock = self._hook.clock
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
        if self._open is not None:
            self._open.reached = step
            if self._is_over(self._open, step, now_ns):
                self._close()
        self._boundary = (step, monotonic_ns())

    def _begin_next(self, step: int, now_ns: int) -> None:
        """Begin the first window whose time has come and that is not refused."""
        for due in tuple(self._due):
            if self._at(due.range, step, now_ns) >= due.range.start:
                self._due.remove(due)
                self._begin(due, step, now_ns)
                if self._open is not None:
                    return

    def _at(self, window: ProfiledRange, step: int, now_ns: int) -> float:
        """Where the training run is, in the unit of a window."""
        return (now_ns - self._begun_ns) / 1e9 if window.timed else step

    def _is_over(self, window: _OpenWindow, step: int, now_ns: int) -> bool:
        steps = window.due.range
        if not steps.timed:
            return step >= window.first + (steps.stop - steps.start)
        if step - window.first >= MOST_PROFILED_STEPS:
            window.note = f"a window has at most {MOST_PROFILED_STEPS} steps"
            return True
        return self._at(steps, step, now_ns) >= steps.stop

    def _leave(self) -> None:
        """No window is open: what the script profiles needs no attention."""
        leave, self._leave_script = self._leave_script, None
        if leave is not None:
            leave()

    def _begin(self, window: _DueWindow, step: int, now_ns: int) -> None:
        name = self._profiler.name
        try:
            obstacle = self._missed(window, step, now_ns) or self._overlapped(window, step, now_ns)
            obstacle = obstacle or ("a CUDA graph is being captured" if captured() else self._profiler.obstacle())
            if obstacle:
                self._refuse(window, obstacle)
                return
            self._read(writes=False)
            began_ns = monotonic_ns()
            if self._leave_script is None:
                self._leave_script = self._profiler.listen(self._hook.guard, self._script_profiles)
            recording = self._profiler.start()
            spent_ns = monotonic_ns() - began_ns
            self._open = _OpenWindow(window, recording, step, spent_ns, list(self._times_s), step)
        except Exception as error:  # of the profiler: the window is lost, capture goes on
            self._refuse(window, f"{name} did not start: {type(error).__name__}: {error}")

    def _missed(self, window: _DueWindow, step: int, now_ns: int) -> str:
        """Why a window of the configuration comes too late, as a clause; "" if it does not."""
        wanted = window.range
        if window.request is not None:
            return ""
        if not wanted.timed:
            return f"its first step was over: step {step} comes next" if wanted.start < step else ""
        over = self._at(wanted, step, now_ns) >= wanted.stop
        return "no step began in this time, or another window was open" if over else ""

    def _overlapped(self, window: _DueWindow, step: int, now_ns: int) -> str:
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
            self._refuse(window.due, f"{self._profiler.name} did not stop: {type(error).__name__}: {error}")
            return
        window.end_ns = monotonic_ns() - began_ns
        window.note = window.note or note
        if window.inside_s:
            self._closed.append(window)
            return
        self._profiler.free(window.recording)
        later = window.later if again else None
        if later is not None:
            self._due.insert(0, later)
        else:
            self._refuse(window.due, note)

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
        for window in self._due if self._hook.started else ():
            self._refuse(window, self._never_began(window))
        self._due.clear()
        self._read()

    def _never_began(self, window: _DueWindow) -> str:
        """Why a window is still to come at the end of the run, as a clause."""
        wanted, step = window.range, self._hook.clock.next_train_step
        if self._lacks_optimizer(window, step):
            return _NO_OPTIMIZER
        begin = "the window began" if window.request is not None or wanted.timed else f"step {wanted.start}"
        return f"the training run ended before {begin}"

    def _lacks_optimizer(self, window: _DueWindow, step: int) -> bool:
        """Whether ``step`` comes next and no optimizer has stepped while the window was due."""
        if self._boundary is not None:
            return False
        if window.request is not None:  # on the fast path some steps end unseen after it
            return step >= max(window.asked, window.range.start) + _PATIENCE_STEPS
        return step > (1 if window.range.timed else window.range.start)

    def _refuse(self, window: _DueWindow, reason: str) -> None:
        steps = window.range
        first, end = (-1, -1) if steps.timed else (int(steps.start), int(steps.stop))
        refusal = WindowRefusal(first, end, reason, window.request, str(steps))
        self._hook.add_fact(refusal.to_fact(self._profiler.kind))

    def _detach(self) -> None:
        self._undo()
        with _changing:
            if self._open is not None:
                self._close("capture ended before its last step")
        self._read()
        self._leave()

    # -- in the recorder's thread ------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._refuse_without_optimizer()
        self._read()

    def _refuse_without_optimizer(self) -> None:
        """Refuse requested windows if no optimizer steps: the process that asked would wait until the run ends."""
        step = self._hook.clock.next_train_step
        with _changing:
            for window in tuple(self._due):
                if window.request is not None and self._lacks_optimizer(window, step):
                    self._due.remove(window)
                    self._refuse(window, _NO_OPTIMIZER)

    def _read(self, *, writes: bool = True) -> None:
        with self._reading:
            while self._closed:
                window = self._closed[0]
                try:
                    try:
                        fact = self._profiler.result(window.recording, window.frame, writes=writes)
                    finally:
                        self._profiler.free(window.recording)
                    self._hook.add_fact(fact)
                except Exception as error:
                    self._refuse(window.due, f"its events were not read: {type(error).__name__}: {error}")
                self._closed.popleft()


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
