"""Steps while they are open, and the thread that writes them down."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.record.deferred_facts import DeferredFact as DeferredFact
    from watchglass.record.frame_writer import FrameWriter as FrameWriter
    from watchglass.record.harvesting import Harvest as Harvest, harvest as harvest, recovered_steps as recovered_steps
    from watchglass.record.open_steps import (
        Captured as Captured,
        CapturedRecords as CapturedRecords,
        Forward as Forward,
        OpenStep as OpenStep,
        Readback as Readback,
    )
    from watchglass.record.recorder import Recorder as Recorder
    from watchglass.record.steady_rows import SteadyRow as SteadyRow
    from watchglass.record.step_clock import StepClock as StepClock
    from watchglass.record.unharvested import has_unharvested as has_unharvested

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
