"""The phases of the steps of PyTorch: waits for loaders, copies, and pauses whose reason is known."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from threading import get_ident
from typing import Any

from watchglass.capture.phase_source import PhaseSource
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.profiling.device_copies import COPIES
from watchglass.capture.pytorch.profiling.loader_times import LoaderTimes
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import DATA, OTHER, PREPARE, StepPhases
from watchglass.capture.wrappers_importlib_bootstrap import RAISED
from watchglass.record import OpenStep
from watchglass.records import PAUSES, Pause, StepPhase


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


#: Shorter ones are not recorded: young objects are collected hundreds of times a second, in microseconds.
_SHORT_NS = 1_000_000
#: Most pauses of one step that are recorded.
_MOST = 4096


class Pauses:
    """Times garbage collections, saves and the work of the script's own PyTorch profiler, in the training thread.

    The step in whose phases they lie records them.

    Args:
        port: Its end is the end of this.
        phases: Gets the pauses, which are a part of its times, by its clock.
    """

    def __init__(self, port: Port, phases: StepPhases) -> None:
        self._phases = phases
        self._thread = get_ident()
        self._since_ns: dict[Pause, int] = {}
        collected = port.guard.shielded(self._collected)
        gc.callbacks.append(collected)
        port.detach_with(lambda: gc.callbacks.remove(collected))
        for pause, each in (
            (Pause.SAVE, calls.SAVE),
            (Pause.PROFILE, calls.PROFILERS),
            (Pause.PROFILE, calls.PROFILERS_ENDED),
        ):
            begins, ended = partial(self._call_begins, pause), partial(self._call_ended, pause)
            port.detach_with(each.listen(port.guard, before=begins, ended=ended))

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        # The profiler makes an object of every event: what is collected meanwhile is its work.
        if not calls.profiles():
            (self._begin if phase == "start" else self._end)(Pause.COLLECTION)

    def _call_begins(self, pause: Pause, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begin(pause)

    def _call_ended(self, pause: Pause, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._end(pause)

    def _begin(self, pause: Pause) -> None:
        if get_ident() == self._thread:
            self._since_ns[pause] = self._phases.now_ns()

    def _end(self, pause: Pause) -> None:
        if get_ident() != self._thread:
            return
        now_ns = self._phases.now_ns()
        spent_ns = now_ns - self._since_ns.pop(pause, now_ns)
        if spent_ns >= _SHORT_NS and self._phases.begun and len(self._phases.rows) < _MOST:
            self._phases.rows.append((PAUSES, (int(pause), 1, spent_ns / 1e9)))


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
