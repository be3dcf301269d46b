"""The overhead budget: how often captures may happen so that they cost no more than a share of the training.

Closed loop: the cost of every callback is measured; the interval is the smallest power of two at which a captured
step's extra cost, spread over the interval, stays within the budget. Changes are rare (one octave of hysteresis).
"""

from __future__ import annotations

from collections import deque
from statistics import median

#: TRAIN steps at the start that are always captured: initialization and early divergence show there.
STARTUP_STEPS = 16
#: The first captures pay for reading the module tree and for cold caches; they do not count.
_WARMUP_CAPTURES = 4
#: Steps and captures that the measured costs are medians of.
_WINDOW, _CAPTURE_WINDOW = 32, 8
_MIN_CAPTURES = 4
#: Of steps that are not captured so many are looked at: one in this number.
_SAMPLED = 8
MAX_INTERVAL = 4096
#: Share of the budget that remains for captures even where bookkeeping alone uses more than the rest.
_FLOOR_SHARE = 0.25


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
        self._step_ns: deque[int] = deque(maxlen=_WINDOW)
        self._captures = 0
        self._steps = 0
        self.cost_ns = 0
        self.train_ns = 0
        #: Smoothed length of a TRAIN step, nanoseconds.
        self.step_ns = 0.0

    def due(self, mode_step: int) -> bool:
        """Whether a TRAIN step is to be captured."""
        if self.fixed is None and mode_step < STARTUP_STEPS:
            return True
        return mode_step % self.interval == 0

    def spent(self, cost_ns: int, step_ns: int, *, due: bool) -> bool:
        """A TRAIN step took ``step_ns``, of which ``cost_ns`` was ours; returns whether the interval changed."""
        self.cost_ns += cost_ns
        self.train_ns += step_ns
        self._steps += 1
        if not due and self._steps % _SAMPLED:
            return False
        self.step_ns += 0.1 * (step_ns - self.step_ns) if self.step_ns else step_ns
        if due:
            self._captures += 1
            if self._captures <= _WARMUP_CAPTURES:
                return False
        (self._due_ns if due else self._idle_ns).append(cost_ns)
        self._step_ns.append(max(1, step_ns - cost_ns))
        # Only at captures: medians at every step would cost more than the bookkeeping they measure.
        if self.fixed is not None or not due or len(self._due_ns) < _MIN_CAPTURES:
            return False
        wanted = self._affordable()
        # Rarer at once, more often only when there is room for twice as much.
        if wanted > self.interval or wanted * 4 <= self.interval:
            self.interval = wanted if wanted > self.interval else wanted * 2
            return True
        return False

    def relieve(self) -> None:
        """Records cannot be written as fast as they come: capture half as often."""
        if self.fixed is None:
            self.interval = min(MAX_INTERVAL, 2 * self.interval)

    @property
    def observed(self) -> float:
        """Share of the training's time that callbacks took so far (a ratio), 0 before the first step."""
        return self.cost_ns / self.train_ns if self.train_ns else 0.0

    def _affordable(self) -> int:
        step_ns = median(self._step_ns)
        idle_ns = median(self._idle_ns) if self._idle_ns else 0
        extra_ns = max(0.0, median(self._due_ns) - idle_ns)
        allowed_ns = max(self.share * step_ns - idle_ns, self.share * step_ns * _FLOOR_SHARE)
        interval = 1
        while interval < MAX_INTERVAL and extra_ns / interval > allowed_ns:
            interval *= 2
        return interval
