"""The operators that ran in profiled windows of a worker's training steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from watchglass.records import OperatorTotals, OperatorWindow, WindowCost, count
from watchglass.run.table import needed
from watchglass.run.worker import Worker

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
    """

    worker: str
    steps: range
    rows: tuple[OperatorTotals, ...]
    cost: WindowCost
    omitted: int
    note: str

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

    def __repr__(self) -> str:
        first = f", most time in {self.rows[0].name}" if self.rows else ""
        return (
            f"Operators({count(len(self.rows), 'operator')} of steps {self.steps.start}:{self.steps.stop} of "
            f"{self.worker!r}{first})"
        )


def operators_of(worker: Worker) -> list[Operators]:
    """See :meth:`Run.operators`."""
    windows = [window for fact in worker.facts(OperatorWindow.KIND) if (window := OperatorWindow.from_fact(fact))]
    return [
        Operators(
            worker.name, range(each.first_step, each.end_step), each.operators, each.cost, each.omitted, each.note
        )
        for each in sorted(windows, key=lambda window: window.first_step)
    ]
