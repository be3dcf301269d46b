"""Profilers that record in windows of training steps, and such a window: to come, then open, in the end a fact."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, ClassVar

from watchglass.capture.guard import Guard
from watchglass.config import MOST_PROFILED_STEPS, ProfiledRange, SessionConfig
from watchglass.records import DeclaredFact, WindowCost, WindowFrame, WindowRefusal


class WindowProfiler(ABC):
    """One profiler of a process, which records in windows of training steps.

    All methods but :meth:`result`, and some calls of :meth:`stop`, are for the training thread. They may raise: the
    window is lost then, and refused.
    """

    #: What requests call it, see :class:`~watchglass.control.ProfileWindow`; also the source of its facts.
    kind: ClassVar[str]
    name: ClassVar[str]  #: Its name in sentences.
    apart: ClassVar[int] = 0  #: Steps that lie between two of its windows, at least.
    #: Whether it is in the way of a profiler in any thread of the process, not only in its own.
    of_process: ClassVar[bool] = False
    #: Whether :meth:`stop` stops it in a forked process, too. Else a window ends before the script forks.
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
    def result(self, recording: Any, frame: WindowFrame, *, writes: bool) -> DeclaredFact:
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


#: Steps after which a requested window is refused if no optimizer has stepped meanwhile: house.
_PATIENCE_STEPS = 16


@dataclass(frozen=True)
class DueWindow:
    """A window that is still to come."""

    range: ProfiledRange  #: The TRAIN steps, or seconds.
    request: int | None = None  #: Number of the request on the running job; None if the configuration names it.
    asked: int = 0  #: The step that came next when it was requested.

    def is_reached(self, step: int, trained_ns: int) -> bool:
        """Whether its time has come.

        Args:
            step: The TRAIN step that comes next.
            trained_ns: Time since the first update.
        """
        return (trained_ns / 1e9 if self.range.timed else step) >= self.range.start

    def missed(self, step: int, trained_ns: int) -> str:
        """Why it comes too late, as a clause; "" if it does not. A requested one never does."""
        wanted = self.range
        if self.request is not None:
            return ""
        if not wanted.timed:
            return f"its first step was over: step {step} comes next" if wanted.start < step else ""
        over = trained_ns / 1e9 >= wanted.stop
        return "no step began in this time, or another window was open" if over else ""

    def waits_in_vain(self, step: int) -> bool:
        """Whether an update would have begun it before ``step`` comes, if there had been any."""
        if self.request is not None:  # on the fast path some steps end unseen after it
            return step >= max(self.asked, self.range.start) + _PATIENCE_STEPS
        return step > (1 if self.range.timed else self.range.start)

    def never_began(self) -> str:
        """Why it is still to come at the end of the training run, as a clause."""
        by_step = self.request is None and not self.range.timed
        return f"the training run ended before {f'step {self.range.start}' if by_step else 'the window began'}"


@dataclass
class OpenWindow:
    """A window that is being recorded, or waits to be read."""

    due: DueWindow  #: The window.
    recording: Any  #: What the profiler records.
    first: int  #: Its first step.
    begin_ns: int  #: Time to start it.
    outside_s: list[float]  #: Times of the steps before.
    reached: int  #: The step that comes next.
    inside_s: list[float] = field(default_factory=list)  #: Times of its steps so far.
    end_ns: int = 0  #: Time to stop it.
    note: str = ""  #: Why it ended early; "" if it did not.

    def reach(self, step: int, trained_ns: int) -> bool:
        """Step ``step`` comes next; returns whether the window is over. Again, it changes nothing."""
        self.reached, wanted = step, self.due.range
        if not wanted.timed:
            return step >= self.first + wanted.stop - wanted.start
        if step - self.first >= MOST_PROFILED_STEPS:
            self.note = f"a window has at most {MOST_PROFILED_STEPS} steps"
            return True
        return trained_ns / 1e9 >= wanted.stop

    @property
    def steps(self) -> ProfiledRange:
        """The steps, or seconds, that it has if it does not end early."""
        due = self.due.range
        return due if due.timed else ProfiledRange(self.first, self.first + due.stop - due.start)

    @property
    def later(self) -> DueWindow | None:
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


class WindowFacts:
    """Records the windows of one profiler as facts: what was recorded in each, or why it was refused.

    The training thread adds windows that are over, and the recorder's thread reads them. A window is read once.

    Args:
        add_fact: Records a fact of the process.
        profiler: Recorded them.
    """

    def __init__(self, add_fact: Callable[[DeclaredFact, str], None], profiler: WindowProfiler) -> None:
        self._add_fact, self._profiler = add_fact, profiler
        self._unread: deque[OpenWindow] = deque()
        self._reading = threading.Lock()

    def add(self, window: OpenWindow) -> None:
        """A window is over, and has at least one step."""
        self._unread.append(window)

    def read(self, *, writes: bool = True) -> None:
        """Read all windows that are over, and free what they hold.

        Args:
            writes: Whether files may be written: not while the training thread waits to begin the next window.
        """
        with self._reading:
            while self._unread:
                window = self._unread[0]
                try:
                    try:
                        fact = self._profiler.result(window.recording, window.frame, writes=writes)
                    finally:
                        self._profiler.free(window.recording)
                    self._add_fact(fact, self._profiler.kind)
                except Exception as error:
                    self.refuse(window.due, f"its events were not read: {type(error).__name__}: {error}")
                self._unread.popleft()

    def refuse(self, window: DueWindow, reason: str) -> None:
        """Record that a window was not profiled; ``reason`` is a clause."""
        steps = window.range
        first, end = (-1, -1) if steps.timed else (int(steps.start), int(steps.stop))
        refusal = WindowRefusal(first, end, reason, window.request, str(steps))
        self._add_fact(refusal, self._profiler.kind)
