"""What is done about findings: a small contract, and stopping the training."""

from watchglass.actions.action import Action, Worker
from watchglass.actions.stop_training import StopTraining

__all__ = ["Action", "StopTraining", "Worker"]
