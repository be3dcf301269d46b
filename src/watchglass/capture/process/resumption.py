"""Where the TRAIN steps of a process begin: at 0, or behind the updates that were made before it.

A training run that continues from a checkpoint is a new attempt whose steps continue. The adapter (from the optimizer's
counter, or the rounds of a booster) or the script (:meth:`Hook.resume <watchglass.capture.Hook.resume>`) gives its
first step once, at the latest at the first update of the process. The open step then gets its number, and all later
ones follow. A counter on a device is read without a wait: the first steps are held back until its value has arrived.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Protocol

from watchglass.capture.limits import CaptureLimits
from watchglass.record import OpenStep, Recorder, StepClock
from watchglass.records import Mode, facts

_MOST_STEPS = 1 << 53


class Coming(Protocol):
    """A number on its way from a device.

    Attributes:
        ready: Whether :meth:`resolve` would not wait.
    """

    @property
    def ready(self) -> bool: ...  # noqa: D102

    def resolve(self) -> Any:
        """The number; waits for the device."""


class Resumption:
    """Settles, once, at which step this process begins, and holds steps back that have no number yet.

    For the training thread, but for :meth:`joined`.

    Args:
        clock: Moved to the step at which training continues.
        recorder: Gets the steps that were held back, and the fact ``resumed``.
        limits: How many evaluation steps may wait for the first training step, and training steps for their number.
    """

    def __init__(self, clock: StepClock, recorder: Recorder, limits: CaptureLimits) -> None:
        self._most_early = limits.early_steps
        self.open = True  #: Nothing has been settled yet.
        self.waiting = False  #: The number is on its way from a device.
        self._clock = clock
        self._recorder = recorder
        self._held: list[OpenStep] = []
        self._coming: Coming | None = None
        self._source = ""
        self._patience = limits.held_steps
        # The recorder's thread learns the attempt, the training thread the step; the last of them reports both.
        self._lock = threading.Lock()
        self._attempt: int | None = None
        self._begin: tuple[int | None, str] | None = None

    def settle(self, start: int | None, source: str) -> None:
        """Begin at ``start``, at 0 for None (not known). Later calls change nothing."""
        if self.open:
            self.open = False
            self._settled(start, source)

    def settle_later(self, coming: Coming, source: str) -> None:
        """Begin at a number that is on its way from a device."""
        if self.open:
            self.open, self.waiting = False, True
            self._coming, self._source = coming, source

    def look(self, *, last: bool = False) -> None:
        """Whether the number has come, after a TRAIN step. With ``last`` it is waited for."""
        coming = self._coming
        if coming is None:
            return
        self._patience -= 1
        if last or coming.ready:
            number = float(coming.resolve())
            self._arrived(int(number) if math.isfinite(number) else None)
        elif self._patience <= 0:
            self._arrived(None)

    def give_up(self) -> None:
        """Do without the number, if it has not come."""
        if self._coming is not None:
            self._arrived(None)

    def holds(self, step: OpenStep) -> bool:
        """Whether a step that is over is held back: before the process trains, and while numbers are not known."""
        if self.open and step.mode is Mode.TRAIN:
            self.settle(None, "nothing")
        if self.waiting:
            if step.mode is Mode.TRAIN:
                self._held.append(step)
                self.look()
                return True
        elif self._recorder.started:
            return False
        if len(self._held) < self._most_early:
            self._held.append(step)
        else:
            self._recorder.drop()
        return True

    def release(self) -> None:
        """Queue the steps that were held back, unless they must wait longer."""
        if self._recorder.started and not self.waiting:
            for step in self._held:
                self._recorder.put(step)
            self._held.clear()

    def joined(self, attempt: int) -> None:
        """This process has its place in a run. On the recorder's thread."""
        with self._lock:
            self._attempt = attempt
            self._record_start()

    def _arrived(self, start: int | None) -> None:
        self._coming, self.waiting = None, False
        self._settled(start, self._source)
        self.release()

    def _settled(self, start: int | None, source: str) -> None:
        if start is not None and not 0 <= start < _MOST_STEPS:
            start = None  # another value under the name of a counter
        if start:
            self._clock.resume(start)
            for step in self._held:
                step.move(start)
        with self._lock:
            self._begin = (start, source if start is not None else "unknown")
            self._record_start()

    def _record_start(self) -> None:
        """Record where this process begins, once both are known; that a run's first one begins at 0 goes without."""
        if self._attempt is None or self._begin is None:
            return
        start, source = self._begin
        if self._attempt > 0 or start:
            self._recorder.add_fact(facts.Resumed(start, source).to_fact(source))
            self._recorder.urgent()  # unlike steps it is in no ring, should the process be killed
