"""The evaluator process of a training run: started by command line, supervised, replaced when it dies."""

from watchglass.supervise.evaluator_process import EvaluatorProcess
from watchglass.supervise.supervision import Supervision

__all__ = ["EvaluatorProcess", "Supervision"]
