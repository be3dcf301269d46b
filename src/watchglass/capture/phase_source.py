"""The contract of what shows where the phases of steps begin: one member for each framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from watchglass.capture.port import Port
from watchglass.capture.step_phases import StepPhases
from watchglass.records import StepPhase


class PhaseSource(ABC):
    """Shows where the phases of the steps of one framework begin.

    An adapter gives it to :func:`record_phases`, which asks for marks only if the configuration records phases.
    Time without a mark is OTHER. A source of COPY calls ``phases.copied`` as a copy ends. The clock of the steps ends
    the phases of a step as the step ends.
    ``watchglass.testing.PhaseSuite`` has the tests that each source must pass.
    """

    #: The phases that it marks. Time of the others is part of those that it marks before them, or OTHER.
    phases: ClassVar[frozenset[StepPhase]]

    @abstractmethod
    def attach(self, port: Port, phases: StepPhases) -> None:
        """Call ``phases.begin(phase)`` from now on, in the training thread, where a phase begins.

        Args:
            port: Its guard runs the callbacks; ``port.detach_with`` undoes what is put into the framework.
            phases: Gets the marks. :data:`AFTER_BACKWARD` stands for UPDATE if the step ends next, and else for OTHER.
        """


def record_phases(port: Port, source: PhaseSource) -> None:
    """Record the phases of steps that ``source`` marks, if the configuration says so.

    All sources of a port mark the same phases: a loop of one framework may read data with another one.
    """
    if not port.config.records_phases:
        return
    if port.phases is None:
        phases = port.phases = StepPhases(port.phase_clock)
        port.clock.now_ns, port.clock.end_phases = phases.now_ns, phases.end_in
        port.on_fork.append(phases.restart)
    source.attach(port, port.phases)
