"""The operators that ran in profiled windows of a worker's training steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from watchglass.records import (
    MemoryTotals,
    ModuleOperator,
    OperatorTotals,
    OperatorWindow,
    WindowCost,
    count,
    read_facts,
)
from watchglass.run.profiled_windows import whole_cost
from watchglass.run.table import needed
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


def operators_in(worker: str, tables: WorkerTables) -> list[Operators]:
    """The windows that a worker recorded in one attempt, in the order in which they ended."""
    return [
        Operators(
            worker, range(each.first_step, each.end_step), each.operators,
            whole_cost(each.cost, each.first_step, tables), each.omitted, each.note, each.request,
            each.trace, each.modules, each.memory,
        )
        for each in read_facts(tables.facts(-1), OperatorWindow)
    ]  # fmt: skip
