"""The phase ``copy``: the time in which the training thread copies tensors of the host to a device."""

from __future__ import annotations

from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.profiling.device_copies import COPIES
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import StepPhases
from watchglass.record import OpenStep

#: First steps after which models are looked at, as after each captured one.
_FIRST = 4


class CopyPhase:
    """Reports copies once a watched model has a parameter on a device: on the CPU alone, nothing is copied.

    Args:
        current: The state of the run.
        phases: Gets the copies.
    """

    def __init__(self, current: TrainingState, phases: StepPhases) -> None:
        self._current = current
        self._phases = phases
        self._listens = False
        port = current.port
        port.detach_with(current.events.add(self))
        port.on_finished.append(self._finished)
        port.detach_with(lambda: COPIES.leave(port.guard))

    def update_ended(self, update: Update) -> None:
        """A captured step is over; its end may be noticed only after the copy of the next batch."""
        self._look()

    def _finished(self, step: OpenStep) -> None:
        if step.mode_step < _FIRST:
            self._look()

    def _look(self) -> None:
        if not self._listens and any(not each.is_cpu for tree in self._current.models for each in tree.parameters()):
            self._listens = COPIES.listen(self._current.port.guard, self._phases)
