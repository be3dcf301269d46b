"""The course of one step through the modules of a model, in any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from watchglass.capture.pytorch.device.stopwatches import Stopwatch
from watchglass.records import ModuleSeconds, StepModules

#: In no module.
OUTSIDE = -1


class ModuleTimeline:
    """Which module runs from which point of time on, in the forwards and backwards of a step.

    For the training thread, and for those on which it lets a backward run.

    Args:
        stopwatch: Notes the times.
    """

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.open = True
        self._stopwatch = stopwatch
        self._note = stopwatch.note
        self._calls: list[int] = []
        self._inside: list[int] = []
        self._forward: list[tuple[int, Any]] = []
        self._backward: list[tuple[int, Any]] = []

    @property
    def at(self) -> int:
        """Number of the innermost module that is being called."""
        return self._inside[-1] if self._inside else OUTSIDE

    def enter(self, module: int) -> None:
        """A module is called; numbers count from 0 in the order of first calls."""
        if module == len(self._calls):
            self._calls.append(0)
        self._calls[module] += 1
        self._inside.append(module)
        self._forward.append((module, self._note()))

    def leave(self, module: int) -> None:
        """It has returned, and so have those inside it that an exception has left."""
        while self._inside and self._inside.pop() != module:
            pass
        self._forward.append((self.at, self._note()))

    def backward(self, module: int) -> None:
        """The backward of a module begins, or that of what lies outside of all."""
        if self.open:
            self._backward.append((module, self._note()))

    def close(self) -> None:
        """Notes nothing more."""
        self.open = False

    def sum(self, modules: Sequence[tuple[str, str, int]]) -> StepModules:
        """The sums by path, type and model of each module. May wait for a device."""
        spent = [[0.0] * len(modules) for _ in range(2)]
        for sums, course in zip(spent, (self._forward, self._backward), strict=True):
            seconds = self._stopwatch.seconds([note for _, note in course])
            for (module, _), each in zip(course, seconds, strict=False):
                if module != OUTSIDE:
                    sums[module] += each
        found = (
            ModuleSeconds(path, module_type, model, calls, round(forward, 9), round(backward, 9))
            for (path, module_type, model), calls, forward, backward in zip(modules, self._calls, *spent, strict=True)
        )
        return StepModules(tuple(found), self._stopwatch.on_device)
