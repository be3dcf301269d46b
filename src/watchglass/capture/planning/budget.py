"""The overhead budget: the captures that a run can pay for.

The budget is an allowance for captures plus a share of the run's time. Costs are processor time (of callbacks at
captured steps, of the recorder's thread) and the time of devices, and the run's time is divided by the *load* of the
machine: how much longer our callbacks took than the processor time that they used. A capture that used more than twice
the processor time of the cheapest of the last eight was disturbed (cold caches, a garbage collection): the rest is not
charged, up to as much as the allowance in all. So two equal runs capture the same steps on machines of different load,
as long as most captures use about the same processor time. Two spacings of captures follow:

* *The interval*, which the share alone pays for: the smallest power of two at which the extra cost of a captured step,
  spread over the interval, stays within the share. Changes are rare (one octave of hysteresis).
* *The thinning*, which the allowance pays for: the first 32 steps of a model, then eight captures in each doubling of
  its step number, so that even a short run has captures, and a long one has some in each of its thirds. No doubling
  may use more than a quarter of the remaining budget. Where eight captures would, there are four, then two up to half
  of it, then one; and of the first 32 steps as many as in any other doubling.

A step is captured at the denser of the two spacings, and only if the remaining budget pays for it.

Each of the first models has a *purse*: a part of the allowance that captures of no other model use. The first model's
is in the allowance, each further one is added to it. Later models share what remains, so that ten thousand folds
cost no more than the budget. The first capture of a model reads the module tree, and that of the process imports and
compiles: such costs of the start are charged to no purse. Both spacings are powers of two on multiples of the step
number. So the captures of a rank with a higher cost are a subset of those of a rank with a lower cost.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

from watchglass.capture.limits import DEFAULT_LIMITS

#: Captures in each doubling of the step number, as a power of two.
_DENSEST = 3
#: A doubling of the step number may use one part in this number of the remaining budget; one with few captures more,
#: since with less than two some third of a run would have none.
_DOUBLINGS, _FEW, _DOUBLINGS_OF_FEW = 4, 1, 2
#: Steps at the start that are all captured at the full density.
_START = 32
#: A purse is one part in this number of the allowance, and this number of models have one. So all purses together add
#: at most 15 / 8 of the allowance.
_PURSES, _MODELS = 8, 16
#: The first captures pay for reading the module tree and for cold caches; they do not count.
_WARMUP_CAPTURES = 4
#: Steps and captures that the measured costs are means or medians of.
_WINDOW, _CAPTURE_WINDOW = 32, 8
_MIN_CAPTURES = 4
#: A capture is charged at most this many times the least of the last ones.
_DEAREST = 2
#: A step counts for at most this many times the median in their mean: a checkpoint is no reason for more captures.
_LONG_STEP = 8
#: Of steps that are not captured the first few are examined, and then one in this number.
_MIN_IDLE, _SAMPLED = 4, 8
MAX_INTERVAL = 4096
#: Most that a step on the fast path costs, as a share of an idle step on the full path.
_FAST_SHARE = 0.25
#: Most that a step costs that is only counted, as a share of a recorded step on the fast path.
_REST_SHARE = 0.125
#: Part of the share that remains for captures even where bookkeeping at every step uses more than the rest.
_FLOOR_SHARE = 0.25
#: Captures between two reliefs, and captures without one after which half of a relief is taken back.
_RELIEF_CAPTURES, _CALM_CAPTURES = 4, 32


class _Purse:
    """What captures of one model may cost, or of all models without a purse.

    Attributes:
        left_ns: The rest of what only they may use.
        prices: What the last captures cost.
        density: Captures in each doubling of the step number, as a power of two.
        started: Whether the model was captured before; True for several models.
    """

    __slots__ = ("density", "left_ns", "prices", "started")

    def __init__(self, left_ns: float, *, started: bool = False) -> None:
        self.left_ns = left_ns
        self.prices: deque[float] = deque(maxlen=_CAPTURE_WINDOW)
        self.density = _DENSEST
        self.started = started


class Budget:
    """Chooses which TRAIN steps are captured. For one thread.

    Steps are numbered among those of their model.

    Args:
        share: Share of the run's time that watching may cost, in (0, 1].
        fixed: An interval that is not to be changed, or None.
        allowance_ns: Cost of captures that is allowed in addition to that share, with one model.

    Attributes:
        interval: The interval that the share pays for, :data:`MAX_INTERVAL` while that is not known; or the fixed one.
        cost_ns: Time of callbacks so far.
        start_ns: The part of it that the start took: installing, imports, reading the models.
        train_ns: How long the run has trained so far.
        step_ns: Smoothed length of a TRAIN step, nanoseconds.
        captures: TRAIN steps captured so far.
        allowance_ns: Cost of captures that is allowed in addition to the share, with the models so far.
        begins_at: Number of the first step of this process: how many updates were made before it. Captures are dense
            from there on.
    """

    def __init__(self, share: float, fixed: int | None = None, allowance_ns: int = DEFAULT_LIMITS.allowance_ns) -> None:
        self.share = share
        self.fixed = fixed
        self.interval = fixed or MAX_INTERVAL
        self._measured = fixed is not None
        self._purse_ns = allowance_ns // _PURSES
        self.allowance_ns = allowance_ns - self._purse_ns
        # What any model may use, before the share is added and captures are paid.
        self._common_ns = float(self.allowance_ns)
        self._purses: dict[int, _Purse] = {}
        self._without_purse = _Purse(0.0, started=True)
        self._idle_ns: deque[int] = deque(maxlen=_WINDOW)
        self._due_ns: deque[int] = deque(maxlen=_CAPTURE_WINDOW)
        # How much more of what disturbed captures cost is not charged: captures of varying cost must not double it.
        self._pardon_ns = float(allowance_ns)
        # Unplanned captures accompany a planned one and share its price.
        self._planned: deque[bool] = deque(maxlen=_CAPTURE_WINDOW)
        self._step_ns: deque[int] = deque(maxlen=_WINDOW)
        self._background_ns: deque[float] = deque(maxlen=_WINDOW)
        # With the first captures, unlike the medians above.
        self._each_ns: deque[float] = deque(maxlen=_CAPTURE_WINDOW)
        # Of the last captures: how long callbacks took, and the processor time that they used.
        self._loads: deque[tuple[int, int]] = deque(maxlen=_WINDOW)
        self._load = 1.0
        # The share of the time so far, and the time of which the share is not known yet, because the load is not.
        self._shared_ns, self._unshared_ns = 0.0, 0
        self._bookkeeping_ns = 0.0
        self._steps = self._fast_steps = 0
        self._standing_ns = 0.0
        # Pressure raises the least interval; it falls again after calm captures.
        self._least = 1
        self._calm = _RELIEF_CAPTURES
        self._spacing = 1
        self.captures = self.begins_at = 0
        self.cost_ns = self.start_ns = 0
        self.train_ns = 0
        self.step_ns = 0.0

    def due(self, step: int, model: int = 0) -> bool:
        """Whether a TRAIN step is to be captured, if :meth:`pays` agrees."""
        return step % self.spacing(step, model) == 0

    def spacing(self, step: int, model: int = 0) -> int:
        """How many steps lie between captures around a TRAIN step, a power of two; or the fixed interval."""
        if self.fixed is not None:
            return self.fixed
        density = self._purse(model).density
        own = step - self.begins_at if step >= self.begins_at else step
        start = own < _START and density == _DENSEST
        thinned = 1 if start else 1 << max(0, own.bit_length() - 1 - density)
        return max(self._least, min(self.interval, thinned))

    def next_due(self, step: int, model: int = 0) -> int:
        """The first TRAIN step from ``step`` on that is :meth:`due`."""
        while True:
            spacing = self.spacing(step, model)
            following = -(-step // spacing) * spacing
            if following == step:
                return step
            step = following  # where the spacing may be twice as long

    def pays(self, model: int = 0) -> bool:
        """Whether the remaining budget pays for one more capture of a model."""
        return self.fixed is not None or self._price_ns(self._purse(model)) <= self.left_ns(model)

    def left_ns(self, model: int = 0) -> float:
        """The remaining budget for captures of a model: its purse, and what no purse holds."""
        return self._left_ns(self._purse(model))

    @property
    def captures_per_doubling(self) -> int:
        """How many steps are captured in each doubling of the step number, at least, of the model with the fewest."""
        return 1 << min((purse.density for purse in self._purses.values()), default=_DENSEST)

    @property
    def knows_idle(self) -> bool:
        """Whether enough steps without a capture were measured to know their cost."""
        return len(self._idle_ns) >= _MIN_IDLE

    @property
    def samples(self) -> bool:
        """Whether the next step is measured even if nothing is captured at it."""
        return not self.knows_idle or (self._steps + 1) % _SAMPLED == 0

    def began(self, cost_ns: int) -> None:
        """Installing capture in the process took this long; the time of the run begins with it."""
        self.cost_ns += cost_ns
        self.start_ns += cost_ns
        self.train_ns += cost_ns

    def spent(
        self, cost_ns: int, step_ns: int, *, captured: bool, chosen: bool, step: int = 0, model: int = 0,
        planned: bool = True, took_ns: int = 0, between_ns: int = 0, background_ns: float = 0.0,
        device_ns: float = 0.0, standing_ns: float = 0.0,
    ) -> bool:  # fmt: skip
        """A TRAIN step is over; returns whether the interval or the thinning changed.

        Args:
            cost_ns: Time of our callbacks in it; processor time where it was captured or one of the :attr:`samples`.
            step_ns: Its time, callbacks included.
            captured: Whether anything was captured at it.
            chosen: Whether :meth:`due` chose it; a collection with a fixed interval is not the budget's choice.
            step: Its number.
            model: Number of its model.
            planned: Whether this is the step that was due, and not one captured with it because optimizers take turns.
            took_ns: How long they took, their waits for a processor included.
            between_ns: Time of our callbacks since the step before: of evaluations.
            background_ns: Work of our thread for captures since the last one.
            device_ns: Work of devices for a capture, as far as known by now. The training may have to wait for
                all of it.
            standing_ns: Work of our thread for every step, captured or not.
        """
        took_ns = max(cost_ns, took_ns)
        self.cost_ns += cost_ns + between_ns
        self._steps += 1
        if captured:
            self.captures += 1
            self._pay(self._purse(model), cost_ns, took_ns, background_ns + device_ns)
        self._passed(step_ns, self.idle_ns + standing_ns + between_ns / self._load)
        skipped = not chosen if captured else self._steps % _SAMPLED and self.knows_idle
        if skipped:
            return False
        self.step_ns += 0.1 * (step_ns - self.step_ns) if self.step_ns else step_ns
        if captured:
            self._spacing = self.spacing(step, model)
            self._calm += 1
            if self._calm % _CALM_CAPTURES == 0:
                self._least = max(1, self._least // 2)
            if self.captures <= _WARMUP_CAPTURES:
                return False
            self._background_ns.append(background_ns + device_ns)
            self._planned.append(planned)
            self._standing_ns = standing_ns
        (self._due_ns if captured else self._idle_ns).append(cost_ns)
        self._step_ns.append(max(1, step_ns - took_ns))
        # Only at captures: medians at every step would cost more than the bookkeeping they measure.
        if self.fixed is not None or not captured:
            return False
        return self._thin(self._purse(model)) | self._settle()

    def passed(self, steps: int, duration_ns: int, extra_ns: int, rested: int = 0) -> None:
        """Count TRAIN steps on the fast path, each of which costs at most a part of an idle step on the full path.

        Args:
            steps: Their number.
            duration_ns: Their time together.
            extra_ns: Time of callbacks in addition to that part.
            rested: How many of them were only counted, each at :data:`_REST_SHARE`.
        """
        recorded = steps - rested * (1 - _REST_SHARE)
        cost_ns = recorded * _FAST_SHARE * self.idle_ns
        self.cost_ns += int(cost_ns) + extra_ns
        self._passed(duration_ns, cost_ns + (steps - rested) * self._standing_ns + extra_ns / self._load)
        self._fast_steps += int(recorded)

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
        self.cost_ns, self.start_ns, self.train_ns = before.cost_ns, before.start_ns, before.train_ns
        self.captures, self.begins_at, self.allowance_ns = before.captures, before.begins_at, before.allowance_ns
        self._common_ns, self._purses, self._without_purse = before._common_ns, before._purses, before._without_purse
        self._pardon_ns = before._pardon_ns
        self._shared_ns, self._unshared_ns = before._shared_ns, before._unshared_ns
        self._bookkeeping_ns = before._bookkeeping_ns
        self._loads, self._load = before._loads, before._load
        self._each_ns.extend(before._each_ns)

    def _purse(self, model: int) -> _Purse:
        purse = self._purses.get(model)
        if purse is not None:
            return purse
        # A model that is not trained yet may never be.
        if model < 0 or len(self._purses) >= _MODELS:
            return self._without_purse
        purse = self._purses[model] = _Purse(self._purse_ns)
        self.allowance_ns += self._purse_ns
        self._thin(purse)
        return purse

    def _left_ns(self, purse: _Purse) -> float:
        """Bookkeeping at every step cannot be thinned out, so a part of the share is reserved from it."""
        shared_ns = max(self._shared_ns - self._bookkeeping_ns, _FLOOR_SHARE * self._shared_ns)
        return purse.left_ns + max(0.0, self._common_ns + shared_ns)

    def _passed(self, duration_ns: int, bookkeeping_ns: float) -> None:
        self.train_ns += duration_ns
        self._unshared_ns += duration_ns
        if self._loads:
            self._shared_ns += self.share * self._unshared_ns / self._load
            self._unshared_ns = 0
        self._bookkeeping_ns += bookkeeping_ns

    def _pay(self, purse: _Purse, cost_ns: int, took_ns: int, beside_ns: float) -> None:
        extra_ns = max(0.0, cost_ns - self.idle_ns) + beside_ns
        if purse.started:
            pardoned_ns = min(self._pardon_ns, max(0.0, extra_ns - _DEAREST * self._price_ns(purse, extra_ns)))
            purse.prices.append(extra_ns)
            self._each_ns.append(extra_ns)
            self._loads.append((took_ns, cost_ns))
            took, used = map(sum, zip(*self._loads, strict=True))
            self._load = max(1.0, took / used) if used else 1.0
            self._pardon_ns -= pardoned_ns
            extra_ns -= pardoned_ns
        else:
            # What it cost more than others belongs to the start.
            purse.started = True
            price_ns = min(extra_ns, self._price_ns(purse))
            self.start_ns += int(extra_ns - price_ns)
            extra_ns = price_ns
        own_ns = min(extra_ns, purse.left_ns)
        purse.left_ns -= own_ns
        self._common_ns -= extra_ns - own_ns

    def _price_ns(self, purse: _Purse, unknown_ns: float = 0.0) -> float:
        """Cost of a capture: the least of few, since disturbances only add to it; of other models while unknown."""
        return min(purse.prices or self._each_ns, default=unknown_ns)

    def _thin(self, purse: _Purse) -> bool:
        """How many captures of a doubling are a quarter of what is left; returns whether that changed."""
        each_ns, left_ns = self._price_ns(purse), self._left_ns(purse)
        density = _density(each_ns, left_ns)
        # Denser again only where twice as much can be paid for.
        if density > purse.density:
            density = max(purse.density, _density(2 * each_ns, left_ns))
        changed = density != purse.density
        purse.density = density
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
        longest_ns = _LONG_STEP * median(self._step_ns)
        step_ns = fmean(min(each, longest_ns) for each in self._step_ns) / self._load
        idle_ns = self.idle_ns
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

    @property
    def idle_ns(self) -> float:
        """Cost of an idle step on the full path: the least of few, since disturbances only add to it."""
        return min(self._idle_ns, default=0)


def _density(each_ns: float, left_ns: float) -> int:
    """How many captures of a doubling a part of what is left pays for, as a power of two; 0 where it pays for none."""
    density = _DENSEST
    while density and each_ns * (1 << density) * (_DOUBLINGS_OF_FEW if density <= _FEW else _DOUBLINGS) > left_ns:
        density -= 1
    return density
