"""Pauses of the training thread whose reason is known: garbage collections, ``torch.save`` and PyTorch's profiler."""

from __future__ import annotations

import gc
from functools import partial
from threading import get_ident
from typing import Any

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.step_phases import StepPhases
from watchglass.records import PAUSES, Pause

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
