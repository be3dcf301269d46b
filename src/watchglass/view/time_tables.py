"""Tables of where the time of steps went, as HTML, for the pages of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.records import count
from watchglass.view.page import table_html
from watchglass.view.text import escaped
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


def code_tables(run: Run) -> list[tuple[str, str]]:
    """Modules, and operators, kernels and functions of each profiled window, per step: titles and tables."""
    tables: list[tuple[str, str]] = []
    times = run.module_times()
    if len(times):
        where = ", times of the device" if times.on_device else ""
        title = f"Modules, per step, in {count(len(times.steps), 'step')} that were timed{where}"
        tables.append((title, table_html(_MODULES, [tuple(map(escaped, row)) for row in module_rows(times)])))
    for each in times.untimed:
        title = f"Modules of {escaped(each.model)} were not timed"
        tables.append((title, f"<p>{escaped(each.reason)}; windows of operators (--profile-steps) are possible</p>"))
    for operators in run.operators():
        steps = f"of training steps {operators.steps.start}:{operators.steps.stop}, per step"
        rows = [OPERATOR_TITLES, *(tuple(map(escaped, row)) for row in operator_rows(operators))]
        if not any(row.self_device_s for row in operators.rows):
            rows = [row[:_DEVICE] + row[_DEVICE + 1 :] for row in rows]
        title = "; ".join(filter(None, (f"Operators {steps}", window_cost_sentence(operators.cost))))
        tables.append((title, table_html(rows[0], rows[1:])))
        rows = [_MODULE_OPERATORS, *(tuple(map(escaped, row)) for row in module_operator_rows(operators))]
        if not any(row.self_device_s for row in operators.modules):
            rows = [row[:-1] for row in rows]
        if len(rows) > 1:
            tables.append((f"Operators by module {steps}", table_html(rows[0], rows[1:])))
        memory = [tuple(map(escaped, row)) for row in memory_rows(operators)]
        if memory:
            title = f"Memory in training steps {operators.steps.start}:{operators.steps.stop}"
            tables.append((title, table_html(("device", "category", "size"), memory)))
        kernels = [tuple(map(escaped, row)) for row in kernel_rows(operators)]
        if kernels:
            tables.append((f"Kernels {steps}", table_html(("kernel", "calls", "device"), kernels)))
    for profile in run.python_profiles():
        steps = f"of training steps {profile.steps.start}:{profile.steps.stop}, per step"
        cells = [tuple(map(escaped, row)) for row in function_rows(profile)]
        title = f"Python functions {steps}, by {profile.profiler}"
        title = "; ".join(filter(None, (title, window_cost_sentence(profile.cost))))
        tables.append((title, table_html(FUNCTION_TITLES, cells)))
    return tables
