"""What a script does already, as far as its run shows: advice to do it is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from watchglass.records import facts
from watchglass.rules import signals
from watchglass.tables import StepView

#: Steps at which a rate that warms up has risen at least, and its first value over the highest at most (house).
_RISES, _LOW = 3, 0.5


def _warms_up(view: StepView) -> bool:
    """Whether the learning rate has risen in steps to a multiple of its first value; a jump is no warm-up."""
    rates = signals.learning_rates(view)
    if not len(rates) or not np.isfinite(rates).all():
        return False
    rising = rates[: int(np.argmax(rates)) + 1]
    return bool(rising[0] <= _LOW * rising[-1] and np.count_nonzero(np.diff(rising) > 0) >= _RISES)


#: By name in causes, see :data:`watchglass.rules.knowledge.ALREADY`.
FOUND_BY: Mapping[str, Callable[[StepView], bool]] = {
    "clips_gradients": lambda view: view.latest_fact(facts.Clip) is not None,
    "scales_loss": lambda view: view.latest_fact(facts.LossScale) is not None or view.scalar("loss_scale") is not None,
    "warms_up": _warms_up,
}


def already(view: StepView) -> list[str]:
    """Names of all that the script does by this step."""
    return [name for name, does in FOUND_BY.items() if does(view)]
