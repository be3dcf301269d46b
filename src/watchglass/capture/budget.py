"""The overhead budget: the captures that a run can pay for.

The budget is an allowance for the start of a run plus a share of its time. The measured cost (callbacks, the recorder's
thread, devices) gives two spacings:

* *The interval*, which the share alone pays for: the smallest power of two at which the extra cost of a captured step,
  spread over the interval, stays within the share. Changes are rare (one octave of hysteresis).
* *The thinning*, which the allowance pays for: the first 32 steps, then eight captures in each doubling of the step
  number, so that even a short run has captures. No doubling may use more than a quarter of the remaining budget. Where
  eight captures would, there are four, two or one (and 16, 8 or 4 at the start).

A step is captured at the denser of the two spacings, and only if the remaining budget pays for it. The first capture
imports, compiles and reads the module tree: it is a cost of the start, and the second one sets the price. Both spacings
are powers of two on multiples of the step number. So the captures of a rank with a higher cost are a subset of those of
a rank with a lower cost.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

from watchglass.capture.limits import DEFAULT_LIMITS

#: Captures in each doubling of the step number, as a power of two.
_DENSEST = 3
#: A doubling of the step number may use one part in this number of the remaining budget.
_DOUBLINGS = 4
#: The first captures pay for reading the module tree and for cold caches; they do not count.
_WARMUP_CAPTURES = 4
#: Steps and captures that the measured costs are medians of.
_WINDOW, _CAPTURE_WINDOW = 32, 8
_MIN_CAPTURES = 4
#: Of steps that are not captured the first few are examined, and then one in this number.
_MIN_IDLE, _SAMPLED = 4, 8
MAX_INTERVAL = 4096
#: Most that a step on the fast path costs, as a share of an idle step on the full path.
_FAST_SHARE = 0.25
#: Parts of the allowance and of the share that remain for captures even where imports, and bookkeeping at every step,
#: use more than the rest.
_FLOOR_ALLOWANCE, _FLOOR_SHARE = 0.5, 0.25
#: Captures between two reliefs, and captures without one after which half of a relief is taken back.
_RELIEF_CAPTURES, _CALM_CAPTURES = 4, 32


class Budget:
    """Chooses which TRAIN steps are captured. For one thread.

    Args:
        share: Share of the run's time that watching may cost, in (0, 1].
        fixed: An interval that is not to be changed, or None.
        allowance_ns: Allowed cost in addition to that share.

    Attributes:
        interval: The interval that the share pays for, :data:`MAX_INTERVAL` while that is not known; or the fixed one.
        cost_ns: Time of callbacks so far.
        train_ns: How long the run has trained so far.
        step_ns: Smoothed length of a TRAIN step, nanoseconds.
        captures: TRAIN steps captured so far.
    """

    def __init__(self, share: float, fixed: int | None = None, allowance_ns: int = DEFAULT_LIMITS.allowance_ns) -> None:
        self.share = share
        self.fixed = fixed
        self.allowance_ns = allowance_ns
        self.interval = fixed or MAX_INTERVAL
        self._measured = fixed is not None
        self._density = _DENSEST
        self._idle_ns: deque[int] = deque(maxlen=_WINDOW)
        self._due_ns: deque[int] = deque(maxlen=_CAPTURE_WINDOW)
        # Unplanned captures accompany a planned one and share its price.
        self._planned: deque[bool] = deque(maxlen=_CAPTURE_WINDOW)
        self._step_ns: deque[int] = deque(maxlen=_WINDOW)
        self._background_ns: deque[float] = deque(maxlen=_WINDOW)
        # With the first captures, unlike the medians above.
        self._each_ns: deque[float] = deque(maxlen=_CAPTURE_WINDOW)
        self._captures_ns = 0.0
        self._elsewhere_ns = 0.0
        self._steps = self._fast_steps = 0
        self._standing_ns = 0.0
        # Pressure raises the least interval; it falls again after calm captures.
        self._least = 1
        self._calm = _RELIEF_CAPTURES
        self._spacing = 1
        self.captures = 0
        self.cost_ns = 0
        self.train_ns = 0
        self.step_ns = 0.0

    def due(self, step: int) -> bool:
        """Whether a TRAIN step is to be captured, if :meth:`pays` agrees."""
        return step % self.spacing(step) == 0

    def spacing(self, step: int) -> int:
        """How many steps lie between captures around a TRAIN step, a power of two; or the fixed interval."""
        if self.fixed is not None:
            return self.fixed
        thinned = 1 if step < 4 << self._density else 1 << (step.bit_length() - 1 - self._density)
        return max(self._least, min(self.interval, thinned))

    def next_due(self, step: int) -> int:
        """The first TRAIN step from ``step`` on that is :meth:`due`.

        A spacing divides the numbers at which it doubles, so the next multiple of it is never beyond one of those.
        """
        spacing = self.spacing(step)
        return -(-step // spacing) * spacing

    def pays(self) -> bool:
        """Whether the remaining budget pays for one more capture."""
        return self.fixed is not None or self._price_ns() <= self.left_ns()

    def left_ns(self) -> float:
        """The remaining budget for captures: the budget by now, less all cost so far.

        Imports and bookkeeping at every step cannot be thinned out; a part of the budget is reserved from them.
        """
        shared_ns = self.share * self.train_ns
        others_ns = self.cost_ns + self._elsewhere_ns - self._captures_ns
        floor_ns = _FLOOR_ALLOWANCE * self.allowance_ns + _FLOOR_SHARE * shared_ns
        return max(self.allowance_ns + shared_ns - others_ns, floor_ns) - self._captures_ns

    @property
    def captures_per_doubling(self) -> int:
        """How many steps are captured in each doubling of the step number, at least."""
        return 1 << self._density

    @property
    def knows_idle(self) -> bool:
        """Whether enough steps without a capture were measured to know their cost."""
        return len(self._idle_ns) >= _MIN_IDLE

    def spent(
        self, cost_ns: int, step_ns: int, *, captured: bool, chosen: bool, step: int = 0, planned: bool = True,
        background_ns: float = 0.0, device_ns: float = 0.0, standing_ns: float = 0.0, elsewhere_ns: float = 0.0,
    ) -> bool:  # fmt: skip
        """A TRAIN step is over; returns whether the interval or the thinning changed.

        Args:
            cost_ns: Time of our callbacks in it.
            step_ns: Its time, callbacks included.
            captured: Whether anything was captured at it.
            chosen: Whether :meth:`due` chose it; a collection with a fixed interval is not the budget's choice.
            step: Its number.
            planned: Whether this is the step that was due, and not one captured with it because optimizers take turns.
            background_ns: Work of our thread for captures since the last one.
            device_ns: Work of devices for a capture, as far as known by now. The training may have to wait for
                all of it.
            standing_ns: Work of our thread for every step, captured or not.
            elsewhere_ns: All work of our thread and of devices so far.
        """
        self.cost_ns += cost_ns
        self.train_ns += step_ns
        self._steps += 1
        if captured:
            self.captures += 1
            self._elsewhere_ns = elsewhere_ns
            self._paid(cost_ns, background_ns + device_ns)
        skipped = not chosen if captured else self._steps % _SAMPLED and self.knows_idle
        if skipped:
            return False
        self.step_ns += 0.1 * (step_ns - self.step_ns) if self.step_ns else step_ns
        if captured:
            self._spacing = self.spacing(step)
            self._calm += 1
            if self._calm % _CALM_CAPTURES == 0:
                self._least = max(1, self._least // 2)
            if self.captures <= _WARMUP_CAPTURES:
                return False
            self._background_ns.append(background_ns + device_ns)
            self._planned.append(planned)
            self._standing_ns = standing_ns
        (self._due_ns if captured else self._idle_ns).append(cost_ns)
        self._step_ns.append(max(1, step_ns - cost_ns))
        # Only at captures: medians at every step would cost more than the bookkeeping they measure.
        if self.fixed is not None or not captured:
            return False
        return self._thin() | self._settle()

    def passed(self, steps: int, duration_ns: int, extra_ns: int) -> None:
        """Count TRAIN steps on the fast path, each of which costs at most a part of an idle step on the full path.

        Args:
            steps: Their number.
            duration_ns: Their time together.
            extra_ns: Time of callbacks in addition to that part.
        """
        self.cost_ns += int(steps * _FAST_SHARE * self._idle()) + extra_ns
        self.train_ns += duration_ns
        self._fast_steps += steps

    def relieve(self) -> bool:
        """Records cannot be written as fast as they come: capture half as often; returns whether the interval changed.

        Once for several captures: what waits needs time to be written. And for a good while, since what made it slow
        does not show in any cost that is measured.
        """
        if self.fixed is not None or self._calm < _RELIEF_CAPTURES or self._spacing >= MAX_INTERVAL:
            return False
        self._calm = 0
        self.interval = self._least = 2 * self._spacing
        return True

    def goes_on_from(self, before: Budget) -> None:
        """Take over the cost and time so far of the budget that this one replaces."""
        self.cost_ns, self.train_ns, self.captures = before.cost_ns, before.train_ns, before.captures
        self._captures_ns, self._elsewhere_ns = before._captures_ns, before._elsewhere_ns
        self._each_ns.extend(before._each_ns)

    def _paid(self, cost_ns: int, beside_ns: float) -> None:
        if self.captures == 1:
            return
        extra_ns = max(0.0, cost_ns - self._idle()) + beside_ns
        self._captures_ns += extra_ns
        self._each_ns.append(extra_ns)

    def _price_ns(self) -> float:
        """Cost of a capture: the least of few, since disturbances only add to it."""
        return min(self._each_ns, default=0.0)

    def _thin(self) -> bool:
        """How many captures of a doubling are a quarter of what is left; returns whether that changed."""
        each_ns, left_ns = self._price_ns(), self.left_ns() / _DOUBLINGS
        density = _DENSEST
        while density and each_ns * (1 << density) > left_ns:
            density -= 1
        # Denser again only where twice as much can be paid for.
        if density > self._density and each_ns * (2 << density) > left_ns:
            density -= 1
        changed = density != self._density
        self._density = density
        return changed

    def _settle(self) -> bool:
        """The interval that the share pays for; returns whether it changed."""
        if len(self._due_ns) < _MIN_CAPTURES:
            return False
        wanted = max(self._affordable(), self._least)
        # Rarer at once, more often only when twice as much can be paid for.
        if not self._measured or wanted > self.interval:
            changed = wanted != self.interval
            self.interval, self._measured = wanted, True
            return changed
        if wanted * 4 <= self.interval:
            self.interval = wanted * 2
            return True
        return False

    def _affordable(self) -> int:
        step_ns = median(self._step_ns)
        idle_ns = self._idle()
        # Our thread writes what several captures brought at once, so its share of one is an average.
        extra_ns = max(0.0, median(self._due_ns) - idle_ns) + fmean(self._background_ns)
        extra_ns *= len(self._planned) / max(1, sum(self._planned))
        fast_path = self._fast_steps / (self._fast_steps + self._steps)
        each_ns = idle_ns * (1 - fast_path * (1 - _FAST_SHARE)) + self._standing_ns
        allowed_ns = max(self.share * step_ns - each_ns, self.share * step_ns * _FLOOR_SHARE)
        interval = 1
        while interval < MAX_INTERVAL and extra_ns / interval > allowed_ns:
            interval *= 2
        return interval

    def _idle(self) -> float:
        """Cost of an idle step on the full path: the least of few, since disturbances only add to it."""
        return min(self._idle_ns, default=0)
