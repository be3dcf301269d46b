"""Statistics of one worker as they were stored: rows by step and by tensor, decoded on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STATISTIC_FIELDS, Origin
from watchglass.stats import Histograms
from watchglass.store import Charges, Frame, StatisticsBatch, Store
from watchglass.tables.histograms import LazyHistograms
from watchglass.tables.payloads import KEPT_BYTES, OnProblem, Payloads
from watchglass.tables.sources import CompactedBlock, LiveBatch, Wanted, row_bytes

#: Copies of rows in memory at the same time: the parts, the joined rows, and the sorted rows.
_TOGETHER = 3
#: Bytes of a range of rows in the index: two tuples, three numbers, a place in a dict.
_RANGE_BYTES = 256
#: Frames that are fetched together where a store answers late.
_AHEAD = 256


class StatisticsRows(NamedTuple):
    """Statistics of one step: one row per tensor."""

    ids: NDArray[np.uint32]  #: Tensor ids, uint32[n].
    values: NDArray[np.float64]  #: float64[n, fields], the requested columns.
    calls: NDArray[np.uint32]  #: uint32[n], tensors merged into each row.
    sampled: NDArray[np.bool_]  #: bool[n], whether a row is of a sample of the elements.
    histograms: LazyHistograms | None = None  #: Of the n tensors; None where no row has one.

    @classmethod
    def none(cls, fields: Sequence[str] = STATISTIC_FIELDS) -> StatisticsRows:
        """No row."""
        return cls(np.zeros(0, np.uint32), np.zeros((0, len(fields))), np.zeros(0, np.uint32), np.zeros(0, np.bool_))

    def take(self, index: NDArray[Any]) -> StatisticsRows:
        """Some of the rows, by index or mask."""
        histograms = self.histograms.take(index) if self.histograms is not None else None
        return StatisticsRows(self.ids[index], self.values[index], self.calls[index], self.sampled[index], histograms)


class StoredStatistics:
    """All statistics of one worker: of frames, and of blocks of steps that were compacted. For one thread.

    Args:
        store: The store of payloads that frames do not hold, and of compacted blocks; None where there are none.
        problem: Called with an invalid frame; its rows are left out.
        kept_bytes: See :class:`~watchglass.tables.payloads.Payloads`.
    """

    def __init__(self, store: Store | None, problem: OnProblem, kept_bytes: int = KEPT_BYTES) -> None:
        self._store, self._problem = store, problem
        self._blocks: list[CompactedBlock] = []
        self._batches: list[LiveBatch] = []
        self._payloads = Payloads(store, kept_bytes)
        self._payloads.decoded.members += 1
        #: Which rows of which batches belong to a step.
        self._ranges: dict[int, tuple[tuple[LiveBatch, int, int], ...]] = {}
        #: Global steps, half-open, that whole histories are limited to; None for no limit.
        self.within: tuple[int, int] | None = None
        self._indexed, self._lock = 0, Lock()
        self._charges = Charges()

    def __del__(self) -> None:
        self._payloads.decoded.members -= 1

    def snapshot(self) -> StoredStatistics:
        """A copy of the present state, which later frames do not change. For any number of threads."""
        found = copy(self)
        found._blocks, found._batches, found._ranges = list(self._blocks), list(self._batches), dict(self._ranges)
        self._payloads.decoded.members += 1
        return found

    def found_in(self, source: str) -> None:
        """The newest segment is this one; those before it are complete."""
        self._payloads.newest = source

    def add(self, frame: Frame) -> None:
        """Take in a STATISTICS frame, which is decoded, and checked, when a reader needs it."""
        self._batches.append(LiveBatch(self._payloads.keep(frame), self._payloads, self._problem))

    def add_block(self, frame: Frame) -> None:
        """Take in a COMPACTED frame, before any STATISTICS frame of later steps.

        Raises:
            DamagedDataError: It is invalid.
        """
        if self._store is not None:
            self._blocks.append(CompactedBlock(frame, self._store, self._payloads, self._problem))

    def at(self, global_step: int, fields: Sequence[str] = STATISTIC_FIELDS) -> StatisticsRows:
        """Rows of a step, one per tensor (the last one written), by tensor; empty where nothing was captured.

        Rows written because of a finding are left out: they must never feed a rule.

        Args:
            global_step: The step.
            fields: The columns of ``values``; the others are not decoded.
        """
        self.look_into()
        found: list[StatisticsRows] = []
        for block in self._blocks:
            stretch = block.stretch(global_step, fields)
            chunk = block.chunk(stretch, fields) if block.first <= global_step <= block.last else None
            if chunk is not None:
                start, stop = np.searchsorted(chunk.global_step, [global_step, global_step + 1]).tolist()
                if start < stop:
                    found.append(_rows_of(chunk, start, stop, partial(block.histograms, stretch)))
        charges = Charges()
        for batch, start, stop in self._ranges.get(global_step, ()):
            charges.add(_TOGETHER * row_bytes(fields) * (stop - start))
            rows = batch.rows(fields)
            if stop <= len(rows):  # else a part of it was invalid
                found.append(_rows_of(rows, start, stop, batch.histograms if batch.may_have_histograms() else None))
        return _last_of_each(found[0] if len(found) == 1 else _joined(found, fields))

    def read(
        self,
        *,
        tensor_ids: Collection[int] | None = None,
        global_steps: tuple[int, int] | None = None,
        fields: Sequence[str] = STATISTIC_FIELDS,
        planned_only: bool = True,
        histograms: bool = False,
    ) -> StatisticsBatch:
        """Rows of many tensors and steps, by global step, then tensor; one of each, the last one written.

        Decodes only these rows and columns, and keeps them within a bound that all readers of a store share.

        Args:
            tensor_ids: Of these tensors; None for all.
            global_steps: Of global steps of this half-open range; None for all.
            fields: The columns of ``values``.
            planned_only: Leave out rows that were written because of a finding, which must never feed a rule.
            histograms: Also the histograms; where rows have none, those are empty.

        Raises:
            CompactedError: Segments were compacted and removed since they were found.
        """
        ids = None if tensor_ids is None else np.unique(np.fromiter(tensor_ids, np.uint32))
        wanted = Wanted(ids, self._limited(global_steps), tuple(fields), histograms)
        if ids is not None and not len(ids):
            return StatisticsBatch.concatenate([], histograms=histograms)
        parts, charges = [], Charges()
        for source in self._sources():
            part = source.select(wanted)
            if part is not None and planned_only and (part.origin != Origin.PLANNED).any():
                part = part.take(part.origin == Origin.PLANNED)
            if part is not None and len(part):
                charges.add(_TOGETHER * part.nbytes)
                parts.append(part)
        return _in_order(StatisticsBatch.concatenate(parts, histograms=histograms))

    def of_tensor(
        self, tensor_id: int, *, fields: Sequence[str] = STATISTIC_FIELDS
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64], LazyHistograms | None]:
        """All rows of a tensor by step, one per step: global steps u64[n], values float64[n, fields], their histograms.

        Arguments as of :meth:`read`; only rows that were planned.
        """
        rows = self.read(tensor_ids=[tensor_id], fields=fields)

        def load() -> Histograms:
            again = self.read(tensor_ids=[tensor_id], fields=(), histograms=True)
            known = again.histograms if again.histograms is not None else Histograms.none(len(again))
            # Frames that came since the rows were read have later steps, but for what was written twice.
            return known.take(np.flatnonzero(np.isin(again.global_step, rows.global_step)))

        return rows.global_step, rows.values, LazyHistograms(load) if len(rows) else None

    def steps_of(self, tensor_id: int) -> set[int]:
        """Global steps that have a row of a tensor."""
        wanted = Wanted(np.array([tensor_id], np.uint32), self._limited(None), ())
        parts = (source.select(wanted) for source in self._sources())
        return {step for part in parts if part is not None for step in part.global_step.tolist()}

    def ids_of(self, global_steps: NDArray[np.uint64]) -> set[int]:
        """Ids of the tensors that have a row of any of these steps."""
        if not len(global_steps):
            return set()
        wanted = Wanted(None, self._limited((int(global_steps.min()), int(global_steps.max()) + 1)), ())
        found: set[int] = set()
        for source in self._sources():
            part = source.select(wanted)
            if part is not None:
                found.update(np.unique(part.tensor_id[np.isin(part.global_step, global_steps)]).tolist())
        return found

    def forget(self, before: int) -> None:
        """Drop the rows of earlier steps."""
        self.look_into()
        self._charges.forget(before)
        for step in [step for step in self._ranges if step < before]:
            del self._ranges[step]
        self._batches = [batch for batch in self._batches if batch.steps.max(initial=0) >= before]
        self._indexed = len(self._batches)
        self._blocks = [block for block in self._blocks if block.last >= before]

    def _limited(self, steps: tuple[int, int] | None) -> tuple[int, int] | None:
        if self.within is None or steps is None:
            return steps or self.within
        return max(steps[0], self.within[0]), min(steps[1], self.within[1])

    def _sources(self) -> Iterator[CompactedBlock | LiveBatch]:
        """All of them in the order in which they were written; what was compacted came first."""
        yield from self._blocks
        for number, batch in enumerate(self._batches):
            if number % _AHEAD == 0:
                self._payloads.ahead([each.frame for each in self._batches[number : number + _AHEAD]])
            yield batch

    def look_into(self) -> None:
        """Find out which steps new frames hold, and which of them make no sense."""
        if self._indexed == len(self._batches):
            return
        with self._lock:
            for batch in self._batches[self._indexed :]:
                self._charges.add(_RANGE_BYTES * len(batch.steps), int(batch.steps.max(initial=0)))
                for step, start, stop in batch.ranges:
                    self._ranges[step] = (*self._ranges.get(step, ()), (batch, start, stop))
                self._indexed += 1


def _rows_of(
    source: StatisticsBatch, start: int, stop: int, histograms: Callable[[], Histograms | None] | None
) -> StatisticsRows:
    """Those of some rows of a frame or a block that were planned; ``histograms`` gives those of all its rows."""
    span = slice(start, stop)

    def load() -> Histograms:
        known = histograms() if histograms is not None else None
        return Histograms.none(stop - start) if known is None else known.take(np.arange(start, stop))

    lazy = LazyHistograms(load) if histograms is not None else None
    found = StatisticsRows(source.tensor_id[span], source.values[span], source.calls[span], source.sampled[span], lazy)
    planned = source.origin[span] == Origin.PLANNED
    return found if planned.all() else found.take(np.flatnonzero(planned))


def _in_order(rows: StatisticsBatch) -> StatisticsBatch:
    """``rows`` by step, then tensor, the last one of each."""
    steps, ids = rows.global_step, rows.tensor_id
    later = (steps[1:] > steps[:-1]) | ((steps[1:] == steps[:-1]) & (ids[1:] > ids[:-1]))
    if later.all():
        return rows
    order = np.lexsort((ids, steps))
    steps, ids = steps[order], ids[order]
    last = np.ones(len(order), bool)
    last[:-1] = (steps[1:] != steps[:-1]) | (ids[1:] != ids[:-1])
    return rows.take(order[last])


def _joined(parts: list[StatisticsRows], fields: Sequence[str]) -> StatisticsRows:
    columns = zip(StatisticsRows.none(fields)[:4], *(part[:4] for part in parts), strict=True)
    ids, values, calls, sampled = map(np.concatenate, columns)
    histograms = [(part.histograms, len(part.ids)) for part in parts]
    has_some = any(each is not None for each, _ in histograms)
    return StatisticsRows(ids, values, calls, sampled, LazyHistograms.concatenate(histograms) if has_some else None)


def _last_of_each(rows: StatisticsRows) -> StatisticsRows:
    """``rows`` by tensor, one of each: a write that failed halfway and was repeated may have left two."""
    if len(rows.ids) < 2 or (rows.ids[1:] > rows.ids[:-1]).all():
        return rows
    return rows.take(last_index_of_each(rows.ids))


def last_index_of_each(keys: NDArray[Any]) -> NDArray[np.intp]:
    """Index of the last row of each key, by key."""
    _, index = np.unique(keys[::-1], return_index=True)
    return np.asarray(len(keys) - 1 - index)
