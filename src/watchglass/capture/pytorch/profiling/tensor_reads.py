"""Fact ``tensor_reads``: where a script waits for numbers of tensors, during single steps between captured ones.

To read a number of a tensor on a device (``.item()``, ``float(loss)``, ``if loss > limit``) waits for all work of the
device. On the host it waits for nothing, but thousands of reads one by one take long. Methods of tensors are wrapped
for three whole steps in a row, a few times in a run: at other steps nothing is observed.
"""

from __future__ import annotations

import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import has_torch_function

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.modules.module_tree import is_compiled
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.wrappers_importlib_bootstrap import around
from watchglass.config import chosen_facts
from watchglass.records import PHASE_NAMES, facts

#: Steps in a row that are observed; captured steps before the first of them, and how many times as many there are
#: before the next ones: Python caches no methods of a class that has changed too often.
_IN_A_ROW, _FIRST, _TIMES = 3, 2, 4
#: Reads after which a look ends, because to observe each takes longer than to read; lines that are recorded.
_MOST_READS, _MOST_LINES = 1024, 8
_OWN = ("watchglass.", "torch.")


@dataclass(slots=True)
class _Line:
    """Reads of one line of the script in one phase, by one function, of tensors on one kind of device."""

    count: int = 0
    waited_ns: int = 0


@dataclass
class _ObservedStep:
    """One step that is observed."""

    optimizer: weakref.ref[Any]  #: The optimizer whose update it began with.
    begun_ns: int  #: When that was.
    #: Reads by place, function, device and phase.
    lines: dict[tuple[str, str, str, str], _Line] = field(default_factory=dict)
    ended: bool = False  #: Whether nothing more is counted.
    leave: ExitStack = field(default_factory=ExitStack)  #: Stops to observe.


class TensorReads:
    """Observes reads of tensors, if the fact is wanted and phases of steps are recorded.

    Args:
        current: The state of the run, with the phases.
    """

    def __init__(self, current: TrainingState) -> None:
        self._current = current
        self._port: Port = current.port
        self._thread = threading.get_ident()
        self._captures = 0
        self._next = _FIRST
        self._left = 0
        self._look: _ObservedStep | None = None
        self._since_ns = 0
        self._undo: Callable[[], None] = _nothing
        self._port.on_configured.append(self._configure)
        self._port.detach_with(self._detach)
        self._configure()

    def _configure(self) -> None:
        wanted = "tensor_reads" in chosen_facts(self._port.config.facts) and self._current.phases is not None
        if wanted == (self._undo is not _nothing):
            return
        self._detach()
        if wanted:
            leave = ExitStack()
            leave.callback(self._current.events.add(self))
            after = self._port.guard.shielded(self._stepped, unless=compiling)
            leave.callback(register_optimizer_step_post_hook(after).remove)
            self._undo = leave.close

    def _detach(self) -> None:
        undo, self._undo = self._undo, _nothing
        self._end()
        undo()

    def update_ended(self, update: Update) -> None:
        """A captured step is over: the next one may be observed."""
        self._captures += 1
        if self._captures < self._next or self._look is not None:
            return
        self._next = _TIMES * self._captures
        if not any(map(is_compiled, self._current.models.roots())):  # a compiler must not read our wrappers
            self._left = _IN_A_ROW
            self._begin(update.optimizer)

    def _begin(self, optimizer: Any) -> None:
        self._left -= 1
        look = self._look = _ObservedStep(weakref.ref(optimizer), monotonic_ns())
        for name, call in calls.READS.items():
            ended = partial(self._read, look, name)
            look.leave.callback(call.listen(self._port.guard, before=self._begin_read, ended=ended))

    def evaluation_began(self, call: Any) -> None:
        """The time until the next update is not that of a step."""
        self._left = 0
        self._end()

    def _begin_read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if has_torch_function(args[:1]):
            # PyTorch would show the wrapper to the script's own kinds of tensors and modes, instead of the method.
            self._left = 0
            self._end()
        self._since_ns = monotonic_ns()

    def _read(self, look: _ObservedStep, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        now_ns = monotonic_ns()
        phases = self._current.phases
        if threading.get_ident() != self._thread or look.ended or phases is None:
            return
        tensor = args[0] if args else None
        device = tensor.device.type if isinstance(tensor, Tensor) else "cuda" if name == "synchronize" else "cpu"
        copies = name in ("cpu", "to")
        if copies and (device == "cpu" or kwargs.get("non_blocking") or getattr(result, "is_cpu", False) is False):
            return
        place = _place(sys._getframe())
        if not place:
            return
        line = look.lines.setdefault((place, name, device, PHASE_NAMES[phases.present]), _Line())
        line.count += 1
        line.waited_ns += now_ns - self._since_ns
        if line.count >= _MOST_READS:
            look.ended = True
            look.leave.close()

    def _stepped(self, optimizer: Any, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped: the observed step is over if it began with the same one."""
        look = self._look
        if look is None or threading.get_ident() != self._thread or look.optimizer() is not optimizer:
            return
        self._end()
        most = sorted(look.lines.items(), key=lambda each: (-each[1].waited_ns, each[0]))[:_MOST_LINES]
        reads = tuple(facts.ReadLine(*where, line.count, line.waited_ns / 1e9) for where, line in most)
        fact = facts.ReadLines((monotonic_ns() - look.begun_ns) / 1e9, not look.ended, reads)
        self._port.records.current().add_fact(fact, "Tensor")
        if self._left:
            self._begin(optimizer)

    def _end(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.leave.close()


def _place(frame: types.FrameType | None) -> str:
    """``file.py:line`` of the caller of a wrapped function; "" where that is no line of the script."""
    caller = next((each for each in _frames(frame) if each.f_globals.get("__name__") == around.__module__), None)
    while caller is not None and caller.f_globals.get("__name__") == around.__module__:
        caller = caller.f_back
    if caller is None or (caller.f_globals.get("__name__") or "").startswith(_OWN):
        return ""
    return f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _nothing() -> None:
    """There is nothing to undo."""
