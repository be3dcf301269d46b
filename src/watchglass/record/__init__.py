"""Steps while they are open, and the thread that writes them down."""

from watchglass.record.clock import StepClock
from watchglass.record.harvesting import Harvest, harvest, recovered_steps
from watchglass.record.opening import FrameWriter, StopControl
from watchglass.record.recorder import Recorder
from watchglass.record.steps import Captured, Forward, OpenStep, Readback, SteadyRow, StepRecords

__all__ = [
    "Captured", "Forward", "FrameWriter", "Harvest", "OpenStep", "Readback", "Recorder", "SteadyRow", "StepClock",
    "StepRecords", "StopControl", "harvest", "recovered_steps",
]  # fmt: skip
