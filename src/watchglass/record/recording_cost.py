"""The cost of recording: CPU time of the recorder's thread, and how much longer captured steps take."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from watchglass.record.open_steps import OpenStep
from watchglass.record.steady_rows import SteadyRow
from watchglass.records import Mode

#: Number of the last differences that count; fewer than the least give no result.
_WINDOW, _LEAST = 512, 12
#: Share of the differences left out at either end as disturbed, and standard errors beyond which a sign is certain.
_TRIM, _CERTAIN = 0.1, 3.0


class ObservedCost:
    """Compares each captured TRAIN step with its two neighbours, where neither of them was captured.

    Unlike the time of callbacks this holds everything that a capture does to a step: caches that it empties, threads
    that it wakes, device work that it queues. It is noisy, so it is reported only when its sign is certain.
    """

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=_WINDOW)
        # Number and end of the last TRAIN step; -2 where the next step has no step before it to be timed from.
        self._last_step = -2
        self._last_end_ns = 0
        # Of the last TRAIN steps without a gap between them: duration, and whether it was captured.
        self._recent: deque[tuple[int, bool]] = deque(maxlen=3)

    def add(self, steps: Iterable[OpenStep | SteadyRow]) -> None:
        """Finished steps, in the order in which they ended."""
        for step in steps:
            if isinstance(step, OpenStep):
                if step.mode is not Mode.TRAIN:
                    self._recent.clear()  # the next TRAIN step's time, from end to end, would hold this step's
                    self._last_step = -2
                    continue
                number, end_ns, due = step.mode_step, step.end_ns, step.due
            else:
                number, end_ns, due = step[1], step[3], False
            if number == self._last_step + 1:
                self._recent.append((end_ns - self._last_end_ns, due))
                self._compare()
            else:
                self._recent.clear()
            self._last_step, self._last_end_ns = number, end_ns

    def _compare(self) -> None:
        if len(self._recent) == 3 and [due for _, due in self._recent] == [False, True, False]:
            before, captured, after = (duration for duration, _ in self._recent)
            self._differences.append(captured - (before + after) / 2)

    def extra_ns(self) -> float | None:
        """Nanoseconds that a captured step takes longer, a trimmed mean; None while even its sign is uncertain."""
        n = len(self._differences)
        if n < _LEAST:
            return None
        ordered = np.sort(np.array(self._differences))
        cut = int(_TRIM * n)
        kept = ordered[cut : n - cut]
        # Standard error of a trimmed mean: Yuen (1974).
        winsorized = np.clip(ordered, kept[0], kept[-1])
        error = float(winsorized.std(ddof=1)) / ((1 - 2 * cut / n) * math.sqrt(n))
        mean = float(kept.mean())
        return mean if abs(mean) > _CERTAIN * error else None


class ThreadTime:
    """CPU time of the recorder's thread. That thread adds, others may read.

    Attributes:
        cpu_ns: All of it.
        captures_cpu_ns: The part that captured steps caused.
        step_cpu_ns: The mean of a step while none was captured.
    """

    def __init__(self) -> None:
        self.cpu_ns = 0
        self.captures_cpu_ns = self.step_cpu_ns = 0.0
        self._quiet_cpu_ns = self._quiet_steps = 0
        self._warm = False

    def warm(self) -> None:
        """Count captures from now on: the first flush imports Arrow, which is not their cost."""
        self._warm = True

    def done(self, started_ns: int, steps: Sequence[OpenStep | SteadyRow]) -> None:
        """Account for what was done for these steps since ``started_ns``, of :func:`time.thread_time_ns`."""
        spent_ns = time.thread_time_ns() - started_ns
        self.cpu_ns += spent_ns
        if any(isinstance(step, OpenStep) and step.due for step in steps):
            more_ns = max(0.0, spent_ns - len(steps) * self.step_cpu_ns)
            self.captures_cpu_ns += more_ns if self._warm else 0.0
        elif steps:
            self._quiet_cpu_ns += spent_ns
            self._quiet_steps += len(steps)
            self.step_cpu_ns = self._quiet_cpu_ns / self._quiet_steps
