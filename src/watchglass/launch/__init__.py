"""Starting a training under watch and bringing it, and everything started for it, to an orderly end."""

from watchglass.launch.job import Job
from watchglass.launch.launcher import BOOTSTRAP, LaunchOutcome, Waiting, launch, run_untouched, training_environment

__all__ = ["BOOTSTRAP", "Job", "LaunchOutcome", "Waiting", "launch", "run_untouched", "training_environment"]
