"""What a launcher does with its evaluator: keeps capture out of it, and waits for its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from watchglass.config import environment
from watchglass.launch.interpreter import without_bootstrap
from watchglass.launch.signals import SignalWatch
from watchglass.supervise import Supervision

#: Seconds after which an evaluator that has not ended is made to; the second where other ranks may still train.
PATIENCE_S, PATIENCE_OF_RANKS_S = 600.0, 6 * 3600.0
_LOOK_S = 0.1


def wait_for(
    evaluator: Supervision,
    signals: SignalWatch,
    *,
    patience_s: float = PATIENCE_S,
    tick: Callable[[float], None] = lambda _: None,
) -> bool:
    """Wait for the end of the evaluator, now that the training has ended.

    Args:
        evaluator: The evaluator.
        signals: Where Ctrl-C and SIGTERM arrive; one of them ends the wait and the evaluator.
        patience_s: Seconds before it is made to end.
        tick: Called a few times a second with the seconds waited, for progress.

    Returns:
        Whether it ended by itself.
    """
    evaluator.training_ended()
    begin = time.monotonic()
    while not evaluator.over:
        waited = time.monotonic() - begin
        tick(waited)
        arrival = signals.wait(_LOOK_S)
        if waited > patience_s or (arrival is not None and arrival.number in (signal.SIGINT, signal.SIGTERM)):
            evaluator.end()
            return False
        evaluator.look()
    return True


def evaluator_environment(environ: Mapping[str, str], bootstrap: str) -> dict[str, str]:
    """The environment of an evaluator, without our bootstrap on the way to its modules."""
    result = environment.for_evaluator(environ)
    python_path = without_bootstrap(result.pop("PYTHONPATH", None), bootstrap)
    return {**result, "PYTHONPATH": python_path} if python_path else result
