"""Records without an open step: made between steps, or saved by a script to the step that has just ended."""

from __future__ import annotations

from collections.abc import Callable

from watchglass.record import CapturedRecords, OpenStep, StepClock


class PendingRecords:
    """Determines which records a value belongs to. For the training thread.

    Args:
        clock: Has the open steps.
        put: Gives a finished step to the recorder.

    Attributes:
        carried: Records made between steps: they belong to the next step, or to the last TRAIN step where none follows.
        late: The last step, while it waits for values that the script saves after the update.
        saves_late: Whether the script saves values after updates.
        holds: Whether the step that is being closed becomes the one that waits.
        in_steady_step: Returns whether a step of the fast path has begun and is not over.
    """

    def __init__(self, clock: StepClock, put: Callable[[OpenStep], None]) -> None:
        self._clock, self._put = clock, put
        self.carried = CapturedRecords()
        self.late: OpenStep | None = None
        self.saves_late = self.holds = False
        self.in_steady_step: Callable[[], bool] = lambda: False

    @property
    def saves_between(self) -> bool:
        """Whether the script saves values between steps, or after an update."""
        return self.saves_late or not self.carried.is_empty

    def current(self) -> CapturedRecords:
        """Records of the step that is open; between steps those of the next one."""
        step = self._clock.evaluation or self._clock.train
        return self.carried if step is None else step.records

    def saved(self) -> CapturedRecords:
        """Records of values that a script saves: of the open step or, until the next one opens, of the last."""
        step = self._clock.evaluation or self._clock.train
        if step is not None:
            self.saves_late |= step.updated
            return step.records
        if self.in_steady_step():
            return self.carried
        self.saves_late = True
        return self.carried if self.late is None else self.late.records

    def take(self) -> CapturedRecords:
        """The carried records, for the step that gets them."""
        carried, self.carried = self.carried, CapturedRecords()
        return carried

    def put_late(self) -> None:
        """Give the step that waits to the recorder."""
        step, self.late = self.late, None
        if step is not None:
            self._put(step)
