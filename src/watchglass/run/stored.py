"""Statistics of one worker as they were stored: rows by step and by tensor, histograms decoded when asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import STATISTIC_FIELDS, Origin
from watchglass.run.histograms import LazyHistograms
from watchglass.run.step_index import StepIndex
from watchglass.stats import Histograms
from watchglass.store import Frame, StatisticsBatch, decode_histograms, decode_statistics, has_histograms

#: Batches whose histograms are kept decoded: readers go from step to step, and a batch holds several.
_DECODED = 4


class StatisticsRows(NamedTuple):
    """Statistics of one step: one row per tensor.

    Attributes:
        ids: Tensor ids, uint32[n].
        values: float64[n, 11], columns as :data:`~watchglass.records.STATISTIC_FIELDS`.
        calls: uint32[n], tensors merged into each row.
        sampled: bool[n], whether a row is of a sample of the elements.
        histograms: Of the n tensors; None where no row has one.
    """

    ids: NDArray[np.uint32]
    values: NDArray[np.float64]
    calls: NDArray[np.uint32]
    sampled: NDArray[np.bool_]
    histograms: LazyHistograms | None = None

    def take(self, index: NDArray[Any]) -> StatisticsRows:
        """Some of the rows, by index or mask."""
        histograms = self.histograms.take(index) if self.histograms is not None else None
        return StatisticsRows(self.ids[index], self.values[index], self.calls[index], self.sampled[index], histograms)


@dataclass(eq=False)
class _Batch:
    """Rows of one frame, and the frame itself where its histograms are still to be decoded."""

    rows: StatisticsBatch
    frame: Frame | None


class StoredStatistics:
    """All statistics of one worker.

    Args:
        problem: Called with a frame whose histograms make no sense; it then has none.
    """

    def __init__(self, problem: Callable[[Frame, DamagedDataError], None]) -> None:
        self._problem = problem
        self._batches = StepIndex[_Batch]()
        self._decoded: OrderedDict[_Batch, Histograms] = OrderedDict()

    def add(self, frame: Frame) -> None:
        """Take in a STATISTICS frame.

        Raises:
            DamagedDataError: Its rows make no sense.
        """
        rows = decode_statistics(frame.payload, histograms=False)
        self._batches.add(_Batch(rows, frame if has_histograms(frame.payload) else None), rows.global_step)

    def at(self, global_step: int, *, planned_only: bool) -> StatisticsRows:
        """Rows of a step, one per tensor (the last one written); empty where nothing was captured."""
        parts = [self._rows(batch, start, stop, planned_only) for batch, start, stop in self._batches.at(global_step)]
        rows = parts[0] if len(parts) == 1 else _joined(parts)
        return _last_of_each(rows)

    def of_tensor(
        self, tensor_id: int, *, planned_only: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64], LazyHistograms | None]:
        """All rows of a tensor by step, one per step: global steps u64[n], values float64[n, 11], their histograms."""
        steps, values = [np.empty(0, np.uint64)], [np.empty((0, len(STATISTIC_FIELDS)))]
        histograms: list[tuple[LazyHistograms | None, int]] = []
        for batch in self._batches.tables():
            rows = batch.rows
            chosen = rows.tensor_id == tensor_id
            if planned_only:
                chosen &= rows.origin == Origin.PLANNED
            if chosen.any():
                steps.append(rows.global_step[chosen])
                values.append(rows.values[chosen])
                histograms.append((self._lazy(batch, np.flatnonzero(chosen)), len(steps[-1])))
        all_steps, all_values = np.concatenate(steps), np.concatenate(values)
        order = last_index_of_each(all_steps)
        return all_steps[order], all_values[order], _together(histograms, order)

    def steps_of(self, tensor_id: int) -> set[int]:
        """Global steps that have a row of a tensor."""
        found: set[int] = set()
        for batch in self._batches.tables():
            found.update(batch.rows.global_step[batch.rows.tensor_id == tensor_id].tolist())
        return found

    def ids_of(self, global_steps: NDArray[np.uint64]) -> set[int]:
        """Ids of the tensors that have a row of any of these steps."""
        found: set[int] = set()
        for batch in self._batches.tables():
            chosen = np.isin(batch.rows.global_step, global_steps)
            found.update(np.unique(batch.rows.tensor_id[chosen]).tolist())
        return found

    def forget(self, before: int) -> None:
        """Drop the rows of earlier steps."""
        self._batches.forget(before)

    def _rows(self, batch: _Batch, start: int, stop: int, planned_only: bool) -> StatisticsRows:
        chosen = np.arange(start, stop)
        if planned_only:
            chosen = chosen[batch.rows.origin[start:stop] == Origin.PLANNED]
        rows = batch.rows
        if len(chosen) == stop - start:
            span = slice(start, stop)
            part = StatisticsRows(rows.tensor_id[span], rows.values[span], rows.calls[span], rows.sampled[span])
        else:
            part = StatisticsRows(rows.tensor_id, rows.values, rows.calls, rows.sampled).take(chosen)
        return part._replace(histograms=self._lazy(batch, chosen))

    def _lazy(self, batch: _Batch, rows: NDArray[np.intp]) -> LazyHistograms | None:
        return LazyHistograms(partial(self._histograms, batch)).take(rows) if batch.frame is not None else None

    def _histograms(self, batch: _Batch) -> Histograms:
        found = self._decoded.get(batch)
        if found is None:
            found = Histograms.none(len(batch.rows))
            if batch.frame is not None:
                try:
                    found = decode_histograms(batch.frame.payload) or found
                except DamagedDataError as error:
                    self._problem(batch.frame, error)
                    batch.frame = None
            while len(self._decoded) >= _DECODED:
                self._decoded.popitem(last=False)
            self._decoded[batch] = found
        return found


def _joined(parts: list[StatisticsRows]) -> StatisticsRows:
    columns = [part[:4] for part in parts]
    none = (np.empty(0, np.uint32), np.empty((0, len(STATISTIC_FIELDS))), np.empty(0, np.uint32), np.empty(0, bool))
    ids, values, calls, sampled = map(np.concatenate, zip(none, *columns, strict=True))
    together = _together([(part.histograms, len(part.ids)) for part in parts], np.arange(len(ids)))
    return StatisticsRows(ids, values, calls, sampled, together)


def _together(parts: list[tuple[LazyHistograms | None, int]], order: NDArray[np.intp]) -> LazyHistograms | None:
    """The parts one after another, in another order; None where none of them has any."""
    if all(part is None for part, _ in parts):
        return None
    return LazyHistograms.concatenate(parts).take(order)


def _last_of_each(rows: StatisticsRows) -> StatisticsRows:
    """``rows`` with one row per tensor: a write that failed halfway and was repeated may have left two."""
    if len(rows.ids) < 2 or (rows.ids[1:] > rows.ids[:-1]).all():
        return rows
    last = last_index_of_each(rows.ids)
    return rows if len(last) == len(rows.ids) else rows.take(np.sort(last))


def last_index_of_each(keys: NDArray[Any]) -> NDArray[np.intp]:
    """Index of the last row of each key, by key."""
    _, index = np.unique(keys[::-1], return_index=True)
    return np.asarray(len(keys) - 1 - index)
