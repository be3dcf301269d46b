"""The time that the training thread waits for data loaders, and that their batches take."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.profiling.loader_times import LoaderTimes
from watchglass.capture.step_phases import DATA, OTHER, PREPARE, StepPhases
from watchglass.capture.wrappers_importlib_bootstrap import RAISED


class DataWaits:
    """Marks when a loader starts, and when the script waits for its next batch and gets it.

    The iterators of a loader have classes with private names, so the class is that of what ``iter(loader)`` returns.

    Args:
        port: The port.
        phases: Gets the marks.
    """

    def __init__(self, port: Port, phases: StepPhases) -> None:
        self._port = port
        self._phases = phases
        self._thread = get_ident()
        self._known: weakref.WeakSet[type] = weakref.WeakSet()
        self._times = LoaderTimes(port, phases)
        port.detach_with(calls.loads(port.guard, before=self._starts, ended=self._started))
        port.detach_with(self._times.take_back)

    def _starts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A thread of the script that loads ahead does not delay the training thread.
        if get_ident() == self._thread:
            self._phases.begin(DATA)
            self._times.starts(args[0])

    def _started(self, args: tuple[Any, ...], kwargs: dict[str, Any], iterator: Any) -> None:
        if get_ident() == self._thread:
            self._times.started(None if iterator is RAISED else iterator)
            self._phases.begin(OTHER)
        made = type(iterator)
        if iterator is RAISED or made in self._known or "__next__" not in dir(made):
            return
        self._known.add(made)
        call = calls.next_batch(made)
        self._port.detach_with(call.listen(self._port.guard, before=self._requested, ended=self._arrived))

    def _requested(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if get_ident() == self._thread:
            self._times.requested(args[0], self._phases.begin(DATA))

    def _arrived(self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any) -> None:
        if get_ident() == self._thread:
            raised = batch is RAISED
            self._times.arrived(args[0], self._phases.begin(OTHER if raised else PREPARE), raised)
