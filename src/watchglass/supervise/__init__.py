"""Processes that accompany a training run: started by command line, supervised, replaced when they die."""

from watchglass.supervise.companion import CompanionProcess
from watchglass.supervise.lifeline import Lifeline, begin_beside
from watchglass.supervise.sampling import SamplerSupervision
from watchglass.supervise.supervision import Supervision

__all__ = ["CompanionProcess", "Lifeline", "SamplerSupervision", "Supervision", "begin_beside"]
