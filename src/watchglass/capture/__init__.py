"""How a training run is watched: the hook, its plan and budget, and one adapter per framework."""

from watchglass.capture.failing import failure_from, report_uncaught
from watchglass.capture.hook import Hook

__all__ = ["Hook", "failure_from", "report_uncaught"]
