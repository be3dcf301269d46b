"""Tables of where the time of steps went, for the pages of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.records import count
from watchglass.view.blocks import Block, Text, TextTable
from watchglass.view.time_figures import (
    FUNCTION_TITLES,
    OPERATOR_TITLES,
    function_rows,
    kernel_rows,
    memory_rows,
    module_operator_rows,
    module_rows,
    operator_rows,
)
from watchglass.view.usage import window_cost_sentence

if TYPE_CHECKING:
    from watchglass.run import Run

_MODULES = (
    "module", "type", "calls", "forward", "backward", "share", "forward with submodules", "backward with submodules",
)  # fmt: skip
_MODULE_OPERATORS = ("module", "direction", "operator or kernel", "calls", "host", "share", "device")
_DEVICE = OPERATOR_TITLES.index("device")


def code_tables(run: Run) -> list[tuple[str, Block]]:
    """Modules, and operators, kernels and functions of each profiled window, per step: titles and tables."""
    tables: list[tuple[str, Block]] = []
    times = run.module_times()
    if len(times):
        where = ", times of the device" if times.on_device else ""
        title = f"Modules, per step, in {count(len(times.steps), 'step')} that were timed{where}"
        tables.append((title, TextTable(_MODULES, module_rows(times))))
    for each in times.untimed:
        why = f"{each.reason}; windows of operators (--profile-steps) are possible"
        tables.append((f"Modules of {each.model} were not timed", Text(why)))
    for operators in run.operators():
        steps = f"of training steps {operators.steps.start}:{operators.steps.stop}, per step"
        rows = [OPERATOR_TITLES, *operator_rows(operators)]
        if not any(row.self_device_s for row in operators.rows):
            rows = [row[:_DEVICE] + row[_DEVICE + 1 :] for row in rows]
        title = "; ".join(filter(None, (f"Operators {steps}", window_cost_sentence(operators.cost))))
        tables.append((title, TextTable(rows[0], rows[1:])))
        rows = [_MODULE_OPERATORS, *module_operator_rows(operators)]
        if not any(row.self_device_s for row in operators.modules):
            rows = [row[:-1] for row in rows]
        if len(rows) > 1:
            tables.append((f"Operators by module {steps}", TextTable(rows[0], rows[1:])))
        if memory := memory_rows(operators):
            title = f"Memory in training steps {operators.steps.start}:{operators.steps.stop}"
            tables.append((title, TextTable(("device", "category", "size"), memory)))
        if kernels := kernel_rows(operators):
            tables.append((f"Kernels {steps}", TextTable(("kernel", "calls", "device"), kernels)))
    for profile in run.python_profiles():
        steps = f"of training steps {profile.steps.start}:{profile.steps.stop}, per step"
        title = f"Python functions {steps}, by {profile.profiler}"
        title = "; ".join(filter(None, (title, window_cost_sentence(profile.cost))))
        tables.append((title, TextTable(FUNCTION_TITLES, function_rows(profile))))
    return tables
