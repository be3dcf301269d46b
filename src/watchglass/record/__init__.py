"""Steps while they are open, and the thread that writes them down."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.record.frame_writer import FrameWriter
    from watchglass.record.harvesting import Harvest, harvest, recovered_steps
    from watchglass.record.open_steps import Captured, CapturedRecords, Forward, OpenStep, Readback, SteadyRow
    from watchglass.record.recorder import Recorder
    from watchglass.record.step_clock import StepClock
    from watchglass.record.unharvested import has_unharvested

_HOMES = {
    "step_clock": ("StepClock",),
    "harvesting": ("Harvest", "harvest", "recovered_steps"),
    "unharvested": ("has_unharvested",),
    "frame_writer": ("FrameWriter",),
    "recorder": ("Recorder",),
    "open_steps": ("Captured", "Forward", "OpenStep", "Readback", "SteadyRow", "CapturedRecords"),
}  # fmt: skip

__all__ = [
    "Captured",
    "CapturedRecords",
    "Forward",
    "FrameWriter",
    "Harvest",
    "OpenStep",
    "Readback",
    "Recorder",
    "SteadyRow",
    "StepClock",
    "harvest",
    "has_unharvested",
    "recovered_steps",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
