"""The operators that ran in a window of profiled training steps, and its memory, as a fact of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchglass.records.fact import DeclaredFact
from watchglass.records.windows import MOST_ROWS, UNKNOWN_COST, WindowCost, WindowFrame, from_columns, to_columns

_KINDS = {"name": str, "on_device": bool}
_MODULE_KINDS = {**_KINDS, "module": str, "backward": bool}
_MEMORY_KINDS = {"device": str, "category": str}


@dataclass(frozen=True)
class OperatorTotals:
    """All calls of one operator, or of one kernel, in a window.

    Attributes:
        name: Its name, ``"aten::addmm"``; the name of a kernel where it ran on a device.
        calls: Number of calls.
        self_cpu_s: Seconds of the host in it, without the operators that it calls.
        cpu_s: The same with them.
        self_device_s: Seconds of the device in kernels that it launched itself; of a kernel, its own.
        device_s: The same with those of the operators that it calls.
        self_memory_bytes: Host memory that it allocated less what it freed, without the operators that it calls.
        self_device_memory_bytes: The same of device memory.
        on_device: Whether it is a kernel or a copy on a device, whose time an operator of the host has as well.
    """

    name: str
    calls: int
    self_cpu_s: float
    cpu_s: float
    self_device_s: float = 0.0
    device_s: float = 0.0
    self_memory_bytes: int = 0
    self_device_memory_bytes: int = 0
    on_device: bool = False


@dataclass(frozen=True)
class ModuleOperator:
    """All calls of one operator by one module in a window, or of one kernel that these calls launched.

    A module that is called by another one has its operators itself; the other one does not count them.

    Attributes:
        module: Path of the module; "" for the model itself.
        model: Number of its model.
        backward: Whether they are of the backward of the module.
        name: As of :class:`OperatorTotals`.
        calls: Number of calls.
        self_cpu_s: As of :class:`OperatorTotals`; 0 for a kernel.
        self_device_s: The same.
        on_device: Whether it is a kernel or a copy on a device, whose time the operator has as well.
    """

    module: str
    model: int
    backward: bool
    name: str
    calls: int
    self_cpu_s: float
    self_device_s: float = 0.0
    on_device: bool = False


@dataclass(frozen=True)
class MemoryTotals:
    """Memory of one category on one device.

    Attributes:
        device: ``"cpu"``, ``"cuda:0"``.
        category: ``parameters``, ``gradients``, ``buffers`` or ``optimizer_state``, at the end of the window; or
            ``temporary``, the most that was allocated at a time during the window beyond its beginning.
        size_bytes: Its size.
    """

    device: str
    category: str
    size_bytes: int


class OperatorWindow(DeclaredFact):
    """A window of training steps whose operators were profiled."""

    KIND = "operator_window"

    first_step: int
    end_step: int
    operators: tuple[OperatorTotals, ...]
    cost: WindowCost = UNKNOWN_COST
    omitted: int = 0
    note: str = ""
    request: int | None = None
    trace: str = ""
    modules: tuple[ModuleOperator, ...] = ()
    memory: tuple[MemoryTotals, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """The data of the fact, with the rows of most time as columns."""
        kept = self.operators[:MOST_ROWS]
        omitted = self.omitted + len(self.operators) - len(kept)
        frame = WindowFrame(self.first_step, self.end_step, self.cost, omitted, self.note, self.request)
        rows = {
            "operators": to_columns(kept, OperatorTotals),
            "modules": to_columns(self.modules[:MOST_ROWS], ModuleOperator),
            "memory": to_columns(self.memory, MemoryTotals),
            "trace": self.trace,
        }
        return {**frame.to_data(), **rows}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> OperatorWindow | None:
        """What :meth:`to_data` gave; None if it is not valid."""
        frame = WindowFrame.from_data(data)
        operators = from_columns(data.get("operators"), OperatorTotals, _KINDS)
        modules = from_columns(data.get("modules"), ModuleOperator, _MODULE_KINDS)
        memory = from_columns(data.get("memory"), MemoryTotals, _MEMORY_KINDS)
        trace = data.get("trace", "")
        if frame is None or operators is None or modules is None or memory is None or not isinstance(trace, str):
            return None
        return cls(frame.first_step, frame.end_step, operators, *frame[2:], trace, modules, memory)
