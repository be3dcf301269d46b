"""Steps while they are open, and the thread that writes them down."""

from watchglass.record.recorder import Recorder
from watchglass.record.steps import Forward, OpenStep, Readback, StepClock, StepRecords

__all__ = ["Forward", "OpenStep", "Readback", "Recorder", "StepClock", "StepRecords"]
