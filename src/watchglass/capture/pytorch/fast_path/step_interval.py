"""The interval of recorded steps: 1, but where a step is so short that a record of each would exceed the budget."""

from __future__ import annotations

import time
from collections.abc import Callable

from watchglass.capture.planning.plan import Plan

#: A step that takes longer waits for something, or computes on several cores: its time counts, not that of its thread.
_WAITS_NS = 10_000_000
#: The most steps after which their mean length counts.
_MEASURED = 256


class StepInterval:
    """Chooses the TRAIN steps on the fast path that are recorded. For the training thread.

    All of the first steps of a run are, so that short runs are complete. After that the interval is the least power of
    two at which the time of the steps pays for recording one of them, and for evaluating it in another process.
    Captures and evaluations divide the steps into stretches, which are measured together.

    Args:
        plan: Has the overhead budget.
        whole_steps: The first step that may not be recorded.
        longest: The longest interval, in steps.
        clocks_ns: Read the time, and the processor time of the thread.

    Attributes:
        interval: The present interval, a power of two.
        measured: Steps after which their mean length counts.
    """

    def __init__(
        self, plan: Plan, whole_steps: int, longest: int,
        clocks_ns: tuple[Callable[[], int], Callable[[], int]] = (time.monotonic_ns, time.thread_time_ns),
    ) -> None:  # fmt: skip
        self._plan, self._whole_steps, self._longest = plan, whole_steps, longest
        self._clock_ns, self._thread_ns = clocks_ns
        self.measured = max(1, min(_MEASURED, whole_steps))
        self._step = self._since_ns = self._since_thread_ns = 0
        # Of the stretches so far.
        self._steps = self._waited_ns = self._worked_ns = 0
        self.interval = 1

    def begin(self, step: int) -> None:
        """A stretch of steps begins with this one."""
        self._step, self._since_ns, self._since_thread_ns = step, self._clock_ns(), self._thread_ns()

    def end(self, step: int) -> None:
        """The stretch has ended before this step."""
        self._steps += step - self._step
        self._waited_ns += self._clock_ns() - self._since_ns
        self._worked_ns += self._thread_ns() - self._since_thread_ns

    def look(self, step: int, row_ns: float) -> bool:
        """Within a stretch, before this step: returns whether the interval changed.

        Args:
            step: The step.
            row_ns: What a recorded step costs.
        """
        self.end(step)
        self.begin(step)
        steps, waited_ns, worked_ns = self._steps, self._waited_ns, self._worked_ns
        if steps < self.measured or step < self._whole_steps:
            return False
        self._steps = self._waited_ns = self._worked_ns = 0
        # Processor time: on a busy machine our callbacks wait as the step does. A step that waits by itself is longer.
        duration_ns = (worked_ns if waited_ns < _WAITS_NS * steps else waited_ns) / steps
        allowed_ns, before = self._plan.budget.share * duration_ns, self.interval
        wanted = 1
        while wanted < self._longest and wanted * allowed_ns < row_ns:
            wanted *= 2
        # Shorter only where half of the wanted interval would do: one slow stretch changes nothing.
        if wanted > self.interval or 2 * wanted < self.interval:
            self.interval = wanted
        return self.interval != before

    def next_due(self, step: int) -> int:
        """The first step from this one on that is recorded."""
        return -(-step // self.interval) * self.interval
