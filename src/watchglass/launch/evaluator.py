"""The evaluator of a launch: its environment without capture, and the wait for its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from watchglass.config import TIMING, Timing, environment
from watchglass.launch.interpreter import without_bootstrap
from watchglass.launch.signals import SignalWatch
from watchglass.supervise import Supervision


def wait_for(
    evaluator: Supervision,
    signals: SignalWatch,
    *,
    patience_s: float,
    tick: Callable[[float], None] = lambda _: None,
    timing: Timing = TIMING,
) -> bool:
    """Wait for the end of the evaluator, after the end of the script.

    Args:
        evaluator: The evaluator.
        signals: The signals; Ctrl-C or SIGTERM ends the wait and the evaluator.
        patience_s: Time limit in seconds; then the evaluator is ended.
        tick: Called a few times a second with the seconds waited, for progress.
        timing: The pause between two looks at it; a signal ends the pause.

    Returns:
        Whether it ended without being stopped.
    """
    evaluator.training_ended()
    begin = time.monotonic()
    while not evaluator.over:
        waited = time.monotonic() - begin
        tick(waited)
        arrival = signals.wait(timing.end_look_s)
        if waited > patience_s or (arrival is not None and arrival.number in (signal.SIGINT, signal.SIGTERM)):
            evaluator.end()
            return False
        evaluator.look()
    return True


def companion_environment(environ: Mapping[str, str], bootstrap: str) -> dict[str, str]:
    """The environment of an evaluator or sampler, without the bootstrap in PYTHONPATH."""
    result = environment.for_companion(environ)
    python_path = without_bootstrap(result.pop("PYTHONPATH", None), bootstrap)
    return {**result, "PYTHONPATH": python_path} if python_path else result
