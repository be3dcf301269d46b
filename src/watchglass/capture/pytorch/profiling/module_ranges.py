"""Which module ran each operator of a profiled window: ranges around modules, and autograd's sequence numbers."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from watchglass.capture.guard import Guard
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_hooks import observe_calls
from watchglass.records import ModuleOperator

#: Begin of the name of a range around a module; with the path of the module it is what a trace shows.
_PREFIX = "module "
#: What autograd calls the backward of one operation.
_BACKWARD = "autograd::engine::evaluate_function"


class ModuleRanges:
    """Ranges around the forwards of modules while a window is profiled.

    For the training thread; :meth:`operators` may be called on another one, once the ranges have ended.

    Args:
        models: The watched models.
        guard: Runs our hooks.
    """

    def __init__(self, models: Models, guard: Guard) -> None:
        from torch.profiler import record_function  # only when a window is due

        self._models, self._range = models, record_function
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        #: By the name of a range, the number of the model and the path of the module.
        self._places: dict[str, tuple[int, str]] = {}
        self._open: list[tuple[nn.Module, Any]] = []
        self._thread = threading.get_ident()
        shielded = functools.partial(guard.shielded, unless=compiling)
        self._undo = observe_calls(shielded(self._entered), shielded(self._left), always=True)

    def end(self) -> None:
        """Take the hooks off, and end what is open."""
        self._undo()
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def holds(self, name: str) -> bool:
        """Whether this is the name of a range."""
        return name in self._places

    def operators(self, events: Iterable[Any]) -> list[ModuleOperator]:
        """The operators of each module, and the kernels that they launched, those of the most time first.

        Args:
            events: All events of the window. Backwards count for the module whose operation they are of. Operators
                outside of modules (losses, optimizers) are left out.
        """
        sums: dict[tuple[str, bool, str, bool], list[float]] = {}

        def add(place: tuple[str, bool], name: str, on_device: bool, host: float, device: float) -> None:
            total = sums.setdefault((*place, name, on_device), [0, 0.0, 0.0])
            total[0], total[1], total[2] = total[0] + 1, total[1] + host, total[2] + device

        for event, place in self._placed(sorted(events, key=lambda event: event.time_range.start)):
            add(place, event.name, False, event.self_cpu_time_total, sum(kernel.duration for kernel in event.kernels))
            for kernel in event.kernels:
                add(place, kernel.name, True, 0.0, kernel.duration)
        rows = [
            ModuleOperator(
                self._places[of][1], self._places[of][0], backward, name, int(calls), round(host / 1e6, 9),
                round(device / 1e6, 9), on_device,
            )
            for (of, backward, name, on_device), (calls, host, device) in sums.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-max(row.self_cpu_s, row.self_device_s), row.module, row.name))

    def _placed(self, events: list[Any]) -> Iterator[tuple[Any, tuple[str, bool]]]:
        """The events of operators inside modules, in order, with the range and whether they are of its backward."""
        #: By thread and sequence number, the range in which an operation last began that autograd keeps.
        kept: dict[tuple[int, int], str] = {}
        places: dict[int, tuple[str, bool] | None] = {}
        for event in events:
            parent = event.cpu_parent
            place = places.get(parent.id) if parent is not None else None
            if event.name in self._places:
                places[event.id] = event.name, False
                continue
            if event.name.startswith(_BACKWARD):
                of = kept.get((event.fwd_thread, event.sequence_nr))
                places[event.id] = None if of is None else (of, True)
                continue
            places[event.id] = place
            if place is None:
                continue
            if event.sequence_nr >= 0:
                # An operation that is not kept has the number of the next one that is: the last one counts.
                kept[event.thread, event.sequence_nr] = place[0]
            if event.name.startswith("aten::") or event.kernels:
                yield event, place

    def _entered(self, module: nn.Module, arguments: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        name = self._names.get(module)
        if name is None:
            place = self._models.module(module)
            if place is None:
                return
            of_model = f" of model {place.model + 1}" if place.model else ""
            name = f"{_PREFIX}{place.path or place.module_type}{of_model}"
            self._names[module] = name
            self._places[name] = place.model or 0, place.path
        entry = self._range(name)
        entry.__enter__()
        self._open.append((module, entry))

    def _left(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if threading.get_ident() == self._thread and self._open and self._open[-1][0] is module:
            self._open.pop()[1].__exit__(None, None, None)
