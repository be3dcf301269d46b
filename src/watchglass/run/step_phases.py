"""Where the time of the steps of a worker went, by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import PHASE_NAMES, PHASES, Mode
from watchglass.run.table import needed
from watchglass.run.worker import Worker
from watchglass.stats import duration_classes, last_typical_class

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Phases:
    """The phases of the steps of one mode of one worker, in seconds of the host.

    Attributes:
        mode: Mode of the steps.
        worker: Name of the worker.
        steps: Steps that have phases, int64[n], ascending.
        values: float64[n, 8], a column for each of :data:`PHASE_NAMES`: ``data``, ``prepare``, ``copy``, ``forward``,
            ``backward``, ``update``, ``compute``, ``other``.
    """

    mode: Mode
    worker: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """One phase of each step in seconds, float64[n].

        Raises:
            KeyError: There is no such phase.
        """
        if name not in PHASE_NAMES:
            raise KeyError(name)
        return self.values[:, PHASE_NAMES.index(name)]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The whole time of each step since the end of the step before, float64[n]."""
        return np.asarray(self.values.sum(1))

    @property
    def shares(self) -> dict[str, float]:
        """The share of each phase in the time of all steps, 0 to 1; NaN without steps."""
        whole = self.values.sum()
        parts = self.values.sum(0) / whole if whole else np.full(len(PHASE_NAMES), np.nan)
        return dict(zip(PHASE_NAMES, parts.tolist(), strict=True))

    def typical(self) -> Phases:
        """Without the steps that took more than about ten times the median: those compile code, or wait for something.

        All steps where more than a tenth of them did: what is so frequent is typical, too.
        """
        if not len(self):
            return self
        classes = duration_classes(self.seconds)
        numbers = dict(zip(*(each.tolist() for each in np.unique(classes, return_counts=True)), strict=True))
        usual = classes <= last_typical_class(numbers)
        return self if usual.all() else Phases(self.mode, self.worker, self.steps[usual], self.values[usual])

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the step as its index and a column for each phase.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = needed("pandas")
        frame: Any = pandas.DataFrame(
            self.values, index=pandas.Index(self.steps, name="step"), columns=list(PHASE_NAMES)
        )
        return frame

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.shares.items()) if len(self) else "none"
        return f"Phases({len(self)} {self.mode.name} steps of {self.worker!r}: {parts})"


def phases_of(worker: Worker, mode: Mode) -> Phases:
    """See :meth:`Run.phases`."""
    numbers = worker.numbers(mode)
    steps, values = [np.empty(0, np.int64)], [np.empty((0, len(PHASE_NAMES)))]
    for attempt, tables in worker.attempts.items():
        rows = tables.log(PHASES).unique(PHASES.unique)
        found, index = numbers.of_global(attempt, rows["global_step"])
        steps.append(found)
        values.append(np.stack([rows[field.name][index] for field in PHASES.own], 1).astype(np.float64))
    all_steps = np.concatenate(steps)
    order = np.argsort(all_steps, kind="stable")
    return Phases(mode, worker.name, all_steps[order], np.concatenate(values)[order])
