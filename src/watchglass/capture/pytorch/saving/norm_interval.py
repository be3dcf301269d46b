"""The interval of the total gradient norm: as short as its share of the overhead budget allows."""

from __future__ import annotations

from watchglass.capture.planning.plan import Plan


class NormInterval:
    """Chooses the TRAIN steps at which the norm is computed in addition to captures. For the training thread.

    Args:
        plan: Has the overhead budget.
        share: The share of the budget for the norm, in 0..1.
        longest: The longest interval, in steps.
    """

    def __init__(self, plan: Plan, share: float, longest: int) -> None:
        self._plan, self._share, self._longest = plan, share, longest
        self._interval = 1
        self._cost_ns = 0.0
        # The step last asked for: all optimizers of a step get the same answer, as their norms become one.
        self._step, self._is_due = -1, False

    def due(self, train_step: int) -> bool:
        """Whether the norm is affordable at this step."""
        if train_step != self._step:
            self._step, self._is_due = train_step, train_step % self._interval == 0
        return self._is_due

    def next_due(self, train_step: int) -> int:
        """The first step from this one on at which the norm is affordable."""
        return -(-train_step // self._interval) * self._interval

    def took(self, cost_ns: int) -> None:
        """Computing the norm once cost this much; the interval follows the moving average."""
        self._cost_ns += 0.1 * (cost_ns - self._cost_ns)
        budget = self._plan.budget
        if not budget.step_ns:
            return
        allowed_ns = self._share * budget.share * budget.step_ns
        interval = 1
        while interval < self._longest and self._cost_ns / interval > allowed_ns:
            interval *= 2
        self._interval = interval
