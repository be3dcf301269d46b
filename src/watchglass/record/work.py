"""What the recorder's thread works, and which part of it captured steps cause."""

from __future__ import annotations

import time
from collections.abc import Sequence

from watchglass.record.steps import OpenStep, SteadyRow


class Work:
    """Keeps account on the clock of the thread that works. That thread adds, and others may read.

    Attributes:
        cpu_ns: All that was worked.
        captures_cpu_ns: The part of it that captured steps caused.
        step_cpu_ns: What any step costs.
    """

    def __init__(self) -> None:
        self.cpu_ns = 0
        self.captures_cpu_ns = self.step_cpu_ns = 0.0
        self._quiet_cpu_ns = self._quiet_steps = 0
        self._warm = False

    def warm(self) -> None:
        """Something has been encoded and written: from here on the work for captures is what it will be."""
        self._warm = True

    def done(self, started_ns: int, steps: Sequence[OpenStep | SteadyRow]) -> None:
        """Account for what was done for these steps since ``started_ns``, of :func:`time.thread_time_ns`."""
        spent_ns = time.thread_time_ns() - started_ns
        self.cpu_ns += spent_ns
        if any(isinstance(step, OpenStep) and step.due for step in steps):
            # The first time imports Arrow, which is no capture's fault.
            more_ns = max(0.0, spent_ns - len(steps) * self.step_cpu_ns)
            self.captures_cpu_ns += more_ns if self._warm else 0.0
        elif steps:
            self._quiet_cpu_ns += spent_ns
            self._quiet_steps += len(steps)
            self.step_cpu_ns = self._quiet_cpu_ns / self._quiet_steps
