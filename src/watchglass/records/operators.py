"""The operators that ran in a window of profiled training steps, and its memory, as a fact of the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from watchglass.records.declared import InColumns
from watchglass.records.fact import DeclaredFact
from watchglass.records.windows import MOST_ROWS, WindowCost, check_steps, with_short_names


class OperatorTotals(InColumns):
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


def summed_operators(parts: Iterable[tuple[str, bool, int, int, int]]) -> tuple[OperatorTotals, ...]:
    """Sums by name and place, those of the most own time first.

    Args:
        parts: The name, whether it ran on a device, the number of calls, and nanoseconds without and with the operators
            that it calls.
    """
    sums: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, on_device, *numbers in parts:
        found = sums[name, on_device]
        found[:] = map(sum, zip(found, numbers, strict=True))
    rows = [
        OperatorTotals(name, calls, 0.0, 0.0, own / 1e9, whole / 1e9, on_device=True)
        if on_device
        else OperatorTotals(name, calls, own / 1e9, whole / 1e9)
        for (name, on_device), (calls, own, whole) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-max(row.self_cpu_s, row.self_device_s), row.name)))


class ModuleOperator(InColumns):
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


class MemoryTotals(InColumns):
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


class OperatorWindow(DeclaredFact, kind="operator_window"):
    """A window of training steps whose operators were profiled."""

    first_step: int
    end_step: int
    operators: tuple[OperatorTotals, ...]
    cost: WindowCost = WindowCost()
    omitted: int = 0
    note: str = ""
    request: int | None = None
    trace: str = ""
    modules: tuple[ModuleOperator, ...] = ()
    memory: tuple[MemoryTotals, ...] = ()

    def __post_init__(self) -> None:
        check_steps(self.first_step, self.end_step)

    def to_data(self) -> dict[str, Any]:
        """The data of the fact, with the rows of most time."""
        operators, modules = with_short_names(self.operators[:MOST_ROWS]), with_short_names(self.modules[:MOST_ROWS])
        omitted = self.omitted + len(self.operators) - len(operators)
        return super(OperatorWindow, replace(self, operators=operators, modules=modules, omitted=omitted)).to_data()
