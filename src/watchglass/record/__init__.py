"""Steps while they are open, and the thread that writes them down."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.record.clock import StepClock
    from watchglass.record.harvesting import Harvest, harvest, recovered_steps
    from watchglass.record.left import is_anything_left
    from watchglass.record.opening import FrameWriter
    from watchglass.record.recorder import Recorder
    from watchglass.record.steps import Captured, Forward, OpenStep, Readback, SteadyRow, StepRecords

_HOMES = {
    "clock": ("StepClock",),
    "harvesting": ("Harvest", "harvest", "recovered_steps"),
    "left": ("is_anything_left",),
    "opening": ("FrameWriter",),
    "recorder": ("Recorder",),
    "steps": ("Captured", "Forward", "OpenStep", "Readback", "SteadyRow", "StepRecords"),
}  # fmt: skip

__all__ = [
    "Captured", "Forward", "FrameWriter", "Harvest", "OpenStep", "Readback", "Recorder", "SteadyRow", "StepClock",
    "StepRecords", "harvest", "is_anything_left", "recovered_steps",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
