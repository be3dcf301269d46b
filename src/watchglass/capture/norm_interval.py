"""How often the total gradient norm is taken: as often as its share of the overhead budget pays for."""

from __future__ import annotations

from watchglass.capture.plan import Plan

#: Share of the overhead budget that the total gradient norm may use, and its longest interval.
_SHARE, _MAX_INTERVAL = 0.25, 64


class NormInterval:
    """Chooses the TRAIN steps, beside those that are captured, at which the norm is taken. For the training's thread.

    Args:
        plan: Its budget is what the norm has a share of.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._interval = 1
        self._cost_ns = 0.0

    def due(self, train_step: int) -> bool:
        """Whether the norm is affordable at this step."""
        return train_step % self._interval == 0

    def next_due(self, train_step: int) -> int:
        """The first step from this one on at which the norm is affordable."""
        return -(-train_step // self._interval) * self._interval

    def took(self, cost_ns: int) -> None:
        """To take it once cost so much."""
        self._cost_ns += 0.1 * (cost_ns - self._cost_ns)
        budget = self._plan.budget
        if not budget.step_ns:
            return
        allowed_ns = _SHARE * budget.share * budget.step_ns
        interval = 1
        while interval < _MAX_INTERVAL and self._cost_ns / interval > allowed_ns:
            interval *= 2
        self._interval = interval
