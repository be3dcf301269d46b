"""The Python functions that ran in profiled windows of a worker's training steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from watchglass.records import CallNode, FunctionTotals, PythonWindow, WindowCost, count, read_facts
from watchglass.run.profiled_windows import whole_cost
from watchglass.run.table import needed
from watchglass.tables import WorkerTables

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class PythonProfile:
    """The Python functions of one window of profiled training steps of one worker.

    Attributes:
        worker: Name of the worker.
        profiler: ``"cprofile"``, which counts every call, or ``"pyinstrument"``, which looks at the stack every
            millisecond.
        steps: The profiled TRAIN steps, half-open.
        rows: Functions, by time without the functions that they call, longest first. Times are sums over the window, in
            seconds; ``calls`` is 0 with pyinstrument.
        tree: The calls, each caller before what it calls; empty with cProfile.
        cost: What the window cost the training run.
        omitted: Number of further functions, which took the least time, with and without the functions that they call.
        note: Why the window has fewer steps than requested; "" if it has all.
        request: Number of the request that it answers, see :meth:`Run.profile`; None if the configuration names it.
    """

    worker: str
    profiler: str
    steps: range
    rows: tuple[FunctionTotals, ...]
    tree: tuple[CallNode, ...]
    cost: WindowCost
    omitted: int
    note: str
    request: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> FunctionTotals:
        """The function of this name; of several the one with the most time.

        Raises:
            KeyError: There is none in the window.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with a column for each attribute of :class:`FunctionTotals`, longest first.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return needed("pandas").DataFrame([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        first = f", most time in {self.rows[0].name}" if self.rows else ""
        return (
            f"PythonProfile({count(len(self.rows), 'function')} of steps {self.steps.start}:{self.steps.stop} of "
            f"{self.worker!r}{first})"
        )


def python_profiles_in(worker: str, tables: WorkerTables) -> list[PythonProfile]:
    """The windows that a worker recorded in one attempt, in the order in which they ended."""
    return [
        PythonProfile(
            worker, each.profiler, range(each.first_step, each.end_step), each.functions, each.tree,
            whole_cost(each.cost, each.first_step, tables), each.omitted, each.note, each.request,
        )
        for each in read_facts(tables.facts(-1), PythonWindow)
    ]  # fmt: skip
