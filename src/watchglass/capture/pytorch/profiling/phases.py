"""The phases of the steps of PyTorch."""

from __future__ import annotations

from watchglass.capture.phase_source import PhaseSource
from watchglass.capture.port import Port
from watchglass.capture.pytorch.profiling.copy_phase import CopyPhase
from watchglass.capture.pytorch.profiling.data_waits import DataWaits
from watchglass.capture.pytorch.profiling.pauses import Pauses
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import StepPhases
from watchglass.records import StepPhase


class PyTorchPhases(PhaseSource):
    """All phases: the parts of the adapter that see a forward, a backward or an update begin put the marks.

    Args:
        current: The state of the run, by which those parts find where to put them.
    """

    phases = frozenset(StepPhase) - {StepPhase.COMPUTE}

    def __init__(self, current: TrainingState) -> None:
        self._current = current

    def attach(self, port: Port, phases: StepPhases) -> None:
        """Mark phases from now on."""
        self._current.phases = phases
        DataWaits(port, phases)
        CopyPhase(self._current, phases)
        Pauses(port, phases)
