"""The overhead budget: how often captures may happen so that they cost no more than a share of the training.

Closed loop: the cost of every callback is measured, and the work of our thread and of devices; the interval is the
smallest power of two at which a captured step's extra cost, spread over the interval, stays within the budget. Changes
are rare (one octave of hysteresis).
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

#: TRAIN steps at the start that are always captured: initialization and early divergence show there.
STARTUP_STEPS = 16
#: The first captures pay for reading the module tree and for cold caches; they do not count.
_WARMUP_CAPTURES = 4
#: Steps and captures that the measured costs are medians of.
_WINDOW, _CAPTURE_WINDOW = 32, 8
_MIN_CAPTURES = 4
#: Of steps that are not captured the first few are looked at, and then one in this number.
_MIN_IDLE, _SAMPLED = 4, 8
MAX_INTERVAL = 4096
#: Most that a step on the steady path costs, as a share of what an idle step costs on the full path.
_STEADY_SHARE = 0.25
#: Share of the budget that remains for captures even where bookkeeping alone uses more than the rest.
_FLOOR_SHARE = 0.25
#: Captures between two reliefs, and captures without one after which half of a relief is taken back.
_RELIEF_CAPTURES, _CALM_CAPTURES = 4, 32


class Budget:
    """Chooses the interval of captures.

    Args:
        share: Share of the training's time that capture may cost, in (0, 1].
        fixed: An interval that is not to be changed, or None.
    """

    def __init__(self, share: float, fixed: int | None = None) -> None:
        self.share = share
        self.fixed = fixed
        self.interval = fixed or 1
        self._idle_ns: deque[int] = deque(maxlen=_WINDOW)
        self._due_ns: deque[int] = deque(maxlen=_CAPTURE_WINDOW)
        # Of the same captures, whether they were planned: others come beside one that is.
        self._planned: deque[bool] = deque(maxlen=_CAPTURE_WINDOW)
        self._step_ns: deque[int] = deque(maxlen=_WINDOW)
        self._background_ns: deque[float] = deque(maxlen=_WINDOW)
        self._captures = 0
        self._steps = self._steady_steps = 0
        self._standing_ns = 0.0
        # The shortest interval at which records can be written as fast as they come, and captures since it was raised.
        self._least = 1
        self._calm = _RELIEF_CAPTURES
        self.cost_ns = 0
        self.train_ns = 0
        #: Smoothed length of a TRAIN step, nanoseconds.
        self.step_ns = 0.0

    def due(self, mode_step: int) -> bool:
        """Whether a TRAIN step is to be captured."""
        if self.fixed is None and mode_step < STARTUP_STEPS:
            return True
        return mode_step % self.interval == 0

    @property
    def knows_idle(self) -> bool:
        """Whether enough steps were seen at which nothing was captured to tell what such a step costs."""
        return len(self._idle_ns) >= _MIN_IDLE

    def spent(
        self,
        cost_ns: int,
        step_ns: int,
        *,
        captured: bool,
        chosen: bool,
        planned: bool = True,
        background_ns: float = 0.0,
        device_ns: float = 0.0,
        standing_ns: float = 0.0,
    ) -> bool:
        """A TRAIN step is over; returns whether the interval changed.

        Args:
            cost_ns: What our callbacks took of it.
            step_ns: What it took, they included.
            captured: Whether anything was captured at it.
            chosen: Whether that was for :meth:`due`; what has an interval of its own is not ours to choose.
            planned: Whether this is the step that was due, and not one captured beside it, of an optimizer that takes
                turns with another.
            background_ns: What our own thread has worked for captures since the last one.
            device_ns: What devices work for a capture, as far as is known by now. The training may have to wait for
                all of it.
            standing_ns: What it works for every step, captured or not.
        """
        self.cost_ns += cost_ns
        self.train_ns += step_ns
        self._steps += 1
        skipped = not chosen if captured else self._steps % _SAMPLED and self.knows_idle
        if skipped:
            return False
        self.step_ns += 0.1 * (step_ns - self.step_ns) if self.step_ns else step_ns
        if captured:
            self._captures += 1
            self._calm_down()
            if self._captures <= _WARMUP_CAPTURES:
                return False
            self._background_ns.append(background_ns + device_ns)
            self._planned.append(planned)
            self._standing_ns = standing_ns
        (self._due_ns if captured else self._idle_ns).append(cost_ns)
        self._step_ns.append(max(1, step_ns - cost_ns))
        # Only at captures: medians at every step would cost more than the bookkeeping they measure.
        if self.fixed is not None or not captured or len(self._due_ns) < _MIN_CAPTURES:
            return False
        wanted = max(self._affordable(), self._least)
        # Rarer at once, more often only when there is room for twice as much.
        if wanted > self.interval or wanted * 4 <= self.interval:
            self.interval = wanted if wanted > self.interval else wanted * 2
            return True
        return False

    def passed(self, steps: int, duration_ns: int, extra_ns: int) -> None:
        """So many TRAIN steps went by on the shortest path, which costs at most a part of an idle step's full path.

        Args:
            steps: How many.
            duration_ns: What they took together.
            extra_ns: What callbacks took of it beside that part.
        """
        self.cost_ns += int(steps * _STEADY_SHARE * self._idle()) + extra_ns
        self.train_ns += duration_ns
        self._steady_steps += steps

    def relieve(self) -> bool:
        """Records cannot be written as fast as they come: capture half as often; returns whether the interval changed.

        Once for several captures: what waits needs time to be written. And for a good while, since what made it slow
        does not show in any cost that is measured.
        """
        if self.fixed is not None or self._calm < _RELIEF_CAPTURES or self.interval == MAX_INTERVAL:
            return False
        self._calm = 0
        self.interval = self._least = 2 * self.interval
        return True

    def _calm_down(self) -> None:
        self._calm += 1
        if self._calm % _CALM_CAPTURES == 0:
            self._least = max(1, self._least // 2)

    def _affordable(self) -> int:
        step_ns = median(self._step_ns)
        idle_ns = self._idle()
        # Our thread writes what several captures brought at once, so its share of one is an average.
        extra_ns = max(0.0, median(self._due_ns) - idle_ns) + fmean(self._background_ns)
        extra_ns *= len(self._planned) / max(1, sum(self._planned))
        steady = self._steady_steps / (self._steady_steps + self._steps)
        each_ns = idle_ns * (1 - steady * (1 - _STEADY_SHARE)) + self._standing_ns
        allowed_ns = max(self.share * step_ns - each_ns, self.share * step_ns * _FLOOR_SHARE)
        interval = 1
        while interval < MAX_INTERVAL and extra_ns / interval > allowed_ns:
            interval *= 2
        return interval

    def _idle(self) -> float:
        """What an idle step costs on the full path: the least of few, as whatever disturbs them only adds to it."""
        return min(self._idle_ns, default=0)
