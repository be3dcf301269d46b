"""The evaluator beside a training run: started by command line, looked after, replaced where it dies."""

from watchglass.supervise.process import EvaluatorProcess
from watchglass.supervise.supervision import Supervision

__all__ = ["EvaluatorProcess", "Supervision"]
