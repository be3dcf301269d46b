"""How long the batches of data loaders took, by the process that made them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from watchglass.records import LOADER_WORKERS, Loader, Mode, count
from watchglass.run.table import needed
from watchglass.run.worker import Worker

if TYPE_CHECKING:
    import pandas

_TIMES = ("mean_fetch_s", "mean_collate_s", "mean_queued_s", "mean_transfer_s")
_LOADERS = {int(each): each.name.lower() for each in Loader}


@dataclass(frozen=True)
class LoaderWorker:
    """The mean times of a batch that one process made for a data loader, in seconds.

    Attributes:
        loader: Name of the loader, ``"loader"``, ``"loader_2"``; ``"loader_more"`` for all beyond the eighth.
        loader_worker: The number of the loader's worker process; -1 for the process that trains, and for all together.
        batches: The number of batches that the script has taken.
        mean_fetch_s: To get the samples from the data set; NaN where that is unknown.
        mean_collate_s: ``collate_fn``.
        mean_queued_s: From then until the script had the batch.
        mean_transfer_s: The part of it in which the script waited for the batch.
    """

    loader: str
    loader_worker: int
    batches: int
    mean_fetch_s: float
    mean_collate_s: float
    mean_queued_s: float
    mean_transfer_s: float


@dataclass(frozen=True, eq=False)
class LoaderWorkers:
    """The times of the batches of data loaders in one worker of a run.

    Attributes:
        worker: Name of the worker of the run.
        rows: One for each process that made batches, by loader and ``loader_worker``.
    """

    worker: str
    rows: tuple[LoaderWorker, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def largest(self) -> LoaderWorker | None:
        """The loader with the most batches, all its processes together; None if no times were recorded."""
        loaders = dict.fromkeys(row.loader for row in self.rows)
        totals = [self._total(loader) for loader in loaders]
        return max(totals, key=lambda total: total.batches, default=None)

    def _total(self, loader: str) -> LoaderWorker:
        rows = [row for row in self.rows if row.loader == loader]
        batches = np.array([row.batches for row in rows])
        times = np.array([[getattr(row, name) for name in _TIMES] for row in rows])
        return LoaderWorker(loader, -1, int(batches.sum()), *(batches @ times / batches.sum()).tolist())

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with a column for each attribute of :class:`LoaderWorker`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        names = list(LoaderWorker.__dataclass_fields__)
        return needed("pandas").DataFrame([asdict(row) for row in self.rows], columns=names)

    def __repr__(self) -> str:
        batches = count(sum(row.batches for row in self.rows), "batch", "batches")
        return f"LoaderWorkers({batches} of {self.worker!r})"


def loader_workers_of(worker: Worker) -> LoaderWorkers:
    """See :meth:`Run.loader_workers`."""
    numbers = worker.numbers(Mode.GLOBAL)
    sums: dict[tuple[int, int], NDArray[np.float64]] = {}
    for attempt, tables in worker.attempts.items():
        rows = tables.log(LOADER_WORKERS).unique(LOADER_WORKERS.unique)
        _, index = numbers.of_global(attempt, rows["global_step"])
        for _, loader, loader_worker, *numbers_of in rows[index].tolist():
            key = loader, loader_worker
            sums[key] = sums.get(key, 0.0) + np.array(numbers_of, np.float64)
    found = ((*key, int(sums[key][0]), sums[key][1:]) for key in sorted(sums) if key[0] in _LOADERS)
    means = (
        LoaderWorker(_LOADERS[loader], loader_worker, batches, *(times / max(batches, 1)).tolist())
        for loader, loader_worker, batches, times in found
    )
    return LoaderWorkers(worker.name, tuple(means))
