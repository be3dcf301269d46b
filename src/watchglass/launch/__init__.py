"""Start a training script under watch, and end the script and its evaluator in order."""

from watchglass.launch.job import Job
from watchglass.launch.launcher import (
    BOOTSTRAP,
    LaunchOutcome,
    Waiting,
    launch,
    run_untouched,
    training_environment,
)

__all__ = [
    "BOOTSTRAP", "Job", "LaunchOutcome", "Waiting", "launch", "run_untouched", "training_environment",
]  # fmt: skip
