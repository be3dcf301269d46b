"""The contract of a profiler that records in windows of training steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from watchglass.capture.guard import Guard
from watchglass.config import ProfiledRange, SessionConfig
from watchglass.records import DeclaredFact, WindowFrame


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
