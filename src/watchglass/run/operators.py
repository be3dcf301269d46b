"""The operators that ran in profiled windows of a worker's training steps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from watchglass.records import (
    COMPARED_STEPS,
    MemoryTotals,
    Mode,
    ModuleOperator,
    OperatorTotals,
    OperatorWindow,
    WindowCost,
    count,
)
from watchglass.run.table import needed
from watchglass.run.worker import Worker
from watchglass.tables import WorkerTables

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Operators:
    """The operators of one window of profiled training steps of one worker.

    Attributes:
        worker: Name of the worker.
        steps: The profiled TRAIN steps, half-open.
        rows: Operators and kernels, by time without the operators that they call, longest first. Times and memory are
            sums over the window, in seconds and bytes.
        cost: What the window cost the training run.
        omitted: Number of further operators, which took the least time.
        note: Why the window has fewer steps than requested; "" if it has all.
        request: Number of the request that it answers, see :meth:`Run.profile`; None if the configuration names it.
        trace: Path of PyTorch's trace in the run's folder or prefix; "" if it is not kept.
        modules: Operators and kernels by module, those of the most time first; also sums over the window. Operators
            outside of modules (losses, optimizers) are left out. Empty for compiled models.
        memory: Memory by device and category.
    """

    worker: str
    steps: range
    rows: tuple[OperatorTotals, ...]
    cost: WindowCost
    omitted: int
    note: str
    request: int | None = None
    trace: str = ""
    modules: tuple[ModuleOperator, ...] = ()
    memory: tuple[MemoryTotals, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> OperatorTotals:
        """The operator of this name; where a kernel has the same name, the operator.

        Raises:
            KeyError: There is none in the window.
        """
        for row in sorted(self.rows, key=lambda row: row.on_device):
            if row.name == name:
                return row
        raise KeyError(name)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the name as its index and a column for each other attribute of :class:`OperatorTotals`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return needed("pandas").DataFrame([asdict(row) for row in self.rows]).set_index("name")

    def modules_to_pandas(self) -> pandas.DataFrame:
        """A data frame with a row for each of ``modules`` and a column for each attribute of :class:`ModuleOperator`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        names = [field.name for field in fields(ModuleOperator)]
        return needed("pandas").DataFrame([asdict(row) for row in self.modules], columns=names)

    def __repr__(self) -> str:
        first = f", most time in {self.rows[0].name}" if self.rows else ""
        return (
            f"Operators({count(len(self.rows), 'operator')} of steps {self.steps.start}:{self.steps.stop} of "
            f"{self.worker!r}{first})"
        )


def operators_of(worker: Worker) -> list[Operators]:
    """See :meth:`Run.operators`."""
    found = [each for tables in worker.attempts.values() for each in operators_in(worker.name, tables)]
    return sorted(found, key=lambda operators: operators.steps.start)


def operators_in(worker: str, tables: WorkerTables) -> list[Operators]:
    """The windows that a worker recorded in one attempt, in the order in which they ended."""
    facts = [fact for fact in tables.facts(-1) if fact.kind == OperatorWindow.KIND]
    return [
        Operators(
            worker, range(each.first_step, each.end_step), each.operators,
            whole_cost(each.cost, each.first_step, tables), each.omitted, each.note, each.request,
            each.trace, each.modules, each.memory,
        )
        for each in map(OperatorWindow.from_fact, facts)
        if each is not None
    ]  # fmt: skip


def whole_cost(cost: WindowCost, first_step: int, tables: WorkerTables) -> WindowCost:
    """The cost of a window; of one that was requested at once, with the steps before as the run has them."""
    if not math.isnan(cost.outside_s):
        return cost
    steps = tables.steps.log.latest
    before = steps[(steps["mode"] == Mode.TRAIN) & (steps["mode_step"] < first_step)][-COMPARED_STEPS - 1 :]
    if len(before) < 2:
        return cost
    seconds = np.diff(before["end_ns"].astype(np.int64)) / np.diff(before["mode_step"]) / 1e9
    return replace(cost, outside_s=float(np.median(seconds)))
