"""Statistics of many tensors over many steps as an Arrow table, read in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.records import COUNT_FIELDS, REDUCTIONS, STATISTIC_FIELDS, Mode, TensorInfo
from watchglass.run.merged import PLACEMENTS, Merger
from watchglass.run.numbering.course import STORED_MODES
from watchglass.run.run_records import RunRecords
from watchglass.run.worker import Worker
from watchglass.stats import Histograms, column, edges, stored_fields
from watchglass.store import Charges, StatisticsBatch
from watchglass.tables import EXACT, Selection, check_reduction, exact_of

if TYPE_CHECKING:
    import pyarrow


#: The default fields of a table: all stored ones, and the most common derived ones.
FIELDS = (*STATISTIC_FIELDS, "mean", "std", "rms", "abs_mean", "abs_max", "zero_ratio", "nonfinite")


class Rows(NamedTuple):
    """Rows of one worker and attempt: ``name`` is a place in the table's list of tensors."""

    attempt: int
    mode: NDArray[np.int64]
    step: NDArray[np.int64]
    number: NDArray[np.int64]
    name: NDArray[np.int64]
    batch: StatisticsBatch
    exact: Mapping[str, NDArray[np.float64]]
    workers: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class StatisticsQuery:
    """The arguments of :meth:`Run.statistics`, and how to read its rows.

    Raises:
        InvalidValueError: A field is not a reduction.
    """

    selection: Selection  #: The tensors.
    mode: Mode  #: The mode of the steps.
    steps: tuple[int, int] | None  #: The steps of that mode, half-open; None for all.
    worker: str | None  #: Name of the worker; None for the first, ``"all"`` for all.
    merged: bool = False  #: One row over all workers.
    histograms: bool = False  #: Add columns for histograms.
    fields: tuple[str, ...] | None = None  #: The reductions; None for :data:`FIELDS`.
    #: Rows read at a time; by default the memory in addition to the table stays below about 100 MB.
    rows_at_once: int = 1 << 20

    def __post_init__(self) -> None:
        for name in self.fields or ():
            check_reduction(name)

    def team(self, run: RunRecords) -> list[Worker]:
        """The workers of the query.

        Raises:
            UnknownNameError: There is no such worker.
        """
        if self.worker not in (None, "all"):
            return [run.worker(self.worker)]
        everybody = self.worker == "all" or self.merged
        return [run.worker(name) for name in (run.workers if everybody else run.workers[:1])]

    def read(self, team: Sequence[Worker]) -> pyarrow.Table:
        """The table."""
        import pyarrow as pa

        matches = self.selection.matcher()
        infos: dict[str, TensorInfo] = {}
        for worker in team:
            for name, row in worker.infos().items():
                if name not in infos and matches(row):
                    infos[name] = row
        layout = Layout(list(infos.values()), [worker.name for worker in team], self)
        pieces = self._merged(team, layout) if self.merged else self._each(team, layout)
        tables, charges = [], Charges()
        for rows, worker_of in pieces:
            tables.append(layout.table(rows, worker_of))
            charges.add(tables[-1].nbytes)
        return pa.concat_tables(tables) if tables else layout.empty()

    def _each(self, team: Sequence[Worker], layout: Layout) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        for place, worker in enumerate(team):
            for low, high in _spans(worker, self.mode, self.steps, len(layout.infos), self.rows_at_once):
                for rows in self._rows(worker, self.mode, low, high, layout):
                    yield rows, np.full(len(rows.step), place)

    def _merged(self, team: Sequence[Worker], layout: Layout) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        everybody = len(team)
        modes = [self.mode] if self.mode is not Mode.GLOBAL else STORED_MODES
        width, codes = max(len(layout.infos), 1), {name: code for code, name in enumerate(PLACEMENTS)}
        partial = codes["partial"]
        placement = np.array([codes.get(info.placement, partial) for info in layout.infos], np.int8)
        for mode in modes:
            within = self.steps if self.mode is not Mode.GLOBAL else None
            for low, high in _together(team, mode, within, width, self.rows_at_once):
                merger = Merger(histograms=self.histograms)
                steps = sorted({step for worker in team for step in worker.numbers(mode).within(low, high)})
                known = np.array(steps, np.int64)
                numbers = np.full(len(known), -1, np.int64)
                origin = np.zeros(len(known), np.int64)
                for place, worker in enumerate(team):
                    for rows in self._rows(worker, mode, low, high, layout):
                        at = np.searchsorted(known, rows.step)
                        numbers[at] = np.where(numbers[at] < 0, rows.number, numbers[at])
                        origin[at] = np.maximum(origin[at], rows.attempt)
                        slot = np.where(placement[rows.name] == partial, place, everybody)
                        keys = (at * width + rows.name) * (everybody + 1) + slot
                        merger.add(keys, placement[rows.name], rows.batch)
                rest, slot = np.divmod(merger.keys, everybody + 1)
                at, name = np.divmod(rest, width)
                batch = StatisticsBatch(
                    np.empty(len(at), np.uint64), np.empty(len(at), np.uint32), merger.calls, merger.values,
                    np.zeros(len(at), np.uint8), merger.sampled, merger.histograms,
                )  # fmt: skip
                for attempt in np.unique(origin[at]).tolist():
                    own = np.flatnonzero(origin[at] == attempt)
                    modes_of = np.full(len(own), int(mode), np.int64)
                    yield Rows(
                        attempt, modes_of, known[at[own]], numbers[at[own]], name[own], batch.take(own), {},
                        merger.workers[own],
                    ), slot[own]  # fmt: skip

    def _rows(self, worker: Worker, mode: Mode, low: int, high: int, layout: Layout) -> Iterator[Rows]:
        """Rows of steps ``[low, high)`` of a mode, attempt by attempt."""
        for attempt, own in worker.numbers(mode).between(low, high).items():
            tables = worker.attempts[attempt]
            known = {row.tensor_id: layout.places[row.name] for row in tables.catalog if row.name in layout.places}
            if not known:
                continue
            ids = np.array(sorted(known), np.uint32)
            places = np.array([known[i] for i in ids.tolist()], np.int64)
            every = len(ids) == len(tables.catalog)
            batch = tables.statistics.read(
                tensor_ids=None if every else ids.tolist(), global_steps=own, fields=layout.stored,
                histograms=self.histograms,
            )  # fmt: skip
            numbering = worker.numbering(attempt)
            recorded = numbering["own"]
            at = np.minimum(np.searchsorted(recorded, batch.global_step), max(len(recorded) - 1, 0))
            name = np.minimum(np.searchsorted(ids, batch.tensor_id), len(ids) - 1)
            chosen = (recorded[at] == batch.global_step) & (ids[name] == batch.tensor_id)
            if mode is not Mode.GLOBAL:
                chosen &= numbering["mode"][at] == int(mode)
            if not chosen.all():
                at, name, batch = at[chosen], name[chosen], batch.take(chosen)
            if len(batch):
                mode_of, step, number = (numbering[field][at].astype(np.int64) for field in ("mode", "step", "number"))
                exact = _exact(tables, batch, layout.fields)
                yield Rows(attempt, mode_of, step, number, places[name], batch, exact)


class Layout:
    """Turns rows into columns, with one dictionary of names for all pieces."""

    def __init__(self, infos: list[TensorInfo], workers: list[str], query: StatisticsQuery) -> None:
        self.infos = infos
        self.places = {info.name: place for place, info in enumerate(infos)}
        self.fields = query.fields if query.fields is not None else FIELDS
        self.stored = STATISTIC_FIELDS if query.merged else stored_fields(self.fields)
        self._workers = [*workers, "all"]
        self._query = query

    def table(self, rows: Rows, worker: NDArray[np.int64]) -> pyarrow.Table:
        """One piece of the table; ``worker`` are places in the list of workers."""
        import pyarrow as pa

        count = len(rows.step)
        columns: dict[str, Any] = {
            "attempt": pa.array(np.full(count, rows.attempt, np.int32)),
            "worker": texts(self._workers, worker),
            "mode": texts([mode.name for mode in STORED_MODES], rows.mode - 1),
            "step": pa.array(rows.step),
            "global_step": pa.array(rows.number),
            "tensor": texts([info.name for info in self.infos], rows.name),
            "role": texts([info.role.value for info in self.infos], rows.name),
            "module": texts([info.module for info in self.infos], rows.name),
            "module_type": texts([info.module_type for info in self.infos], rows.name),
        }
        layers = np.array([info.layer_index for info in self.infos], np.int32)
        columns["layer_index"] = pa.array(layers[rows.name])
        columns["calls"], columns["sampled"] = pa.array(rows.batch.calls), pa.array(rows.batch.sampled)
        if self._query.merged:
            columns["workers"] = pa.array(rows.workers if rows.workers is not None else np.empty(0, np.int32))
        for name in self.fields:
            if name in EXACT:
                found = rows.exact.get(name, np.full(count, np.nan))
            else:
                found = column(rows.batch.values, name, self.stored)
            columns[name] = pa.array(found.astype(np.int64) if name in _COUNTS else np.ascontiguousarray(found))
        if self._query.histograms:
            columns.update(_histogram_columns(rows.batch.histograms, count))
        return pa.table(columns)

    def empty(self) -> pyarrow.Table:
        """The table without a row."""
        none = np.empty(0, np.int64)
        return self.table(Rows(0, none, none, none, none, StatisticsBatch.concatenate([], histograms=False), {}), none)


_COUNTS = (*COUNT_FIELDS, "finite", "nonfinite")


def spans(steps: NDArray[Any], rows: NDArray[Any], most: int) -> list[tuple[int, int]]:
    """Half-open ranges that together hold all steps, ascending, each with a limited number of rows.

    Args:
        steps: The steps.
        rows: The number of rows of each step.
        most: About the greatest number of rows of a range.
    """
    part = np.cumsum(rows, dtype=np.int64) // most
    begins = [*np.flatnonzero(np.diff(part, prepend=-1)).tolist(), len(steps)]
    return [(int(steps[begin]), int(steps[end - 1]) + 1) for begin, end in pairwise(begins)]


def _spans(worker: Worker, mode: Mode, steps: tuple[int, int] | None, width: int, most: int) -> list[tuple[int, int]]:
    """Ranges of steps, half-open, each of about ``most`` rows."""
    ends = worker.ends(worker.columns)
    if mode is not Mode.GLOBAL:
        ends = ends[ends["mode"] == mode]
    numbers = ends["global_step" if mode is Mode.GLOBAL else "mode_step"].astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    if steps is not None:
        order = order[(numbers[order] >= steps[0]) & (numbers[order] < steps[1])]
    return spans(numbers[order], np.minimum(ends["captures"][order], width), most)


def _together(
    team: Sequence[Worker], mode: Mode, steps: tuple[int, int] | None, width: int, most: int
) -> Iterator[tuple[int, int]]:
    """As :func:`_spans`, over the steps of all workers, cut where those of the worker with the most steps are cut."""
    if not team:
        return
    first = max(team, key=lambda worker: len(worker.numbers(mode)))
    low = min(next(iter(worker.numbers(mode)), 0) for worker in team)
    high = max(worker.numbers(mode).last for worker in team) + 1
    if steps is not None:
        low, high = max(low, steps[0]), min(high, steps[1])
    cuts = [end for _, end in _spans(first, mode, steps, width, most)][:-1]
    for end in (*cuts, high):
        if low < end:
            yield low, end
        low = max(low, end)


def _exact(tables: Any, batch: StatisticsBatch, fields: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Columns of the exact reductions among the fields; NaN where none was recorded."""
    wanted = [name for name in fields if name in EXACT]
    found = {name: np.full(len(batch), np.nan) for name in wanted}
    if wanted:
        steps = np.unique(batch.global_step).tolist()
        by_step = {step: exact_of({REDUCTIONS: tables.rows(REDUCTIONS, step)}) for step in steps}
        for row, (step, tensor_id) in enumerate(zip(batch.global_step.tolist(), batch.tensor_id.tolist(), strict=True)):
            for name in wanted:
                found[name][row] = by_step[step].get((tensor_id, EXACT[name][0]), np.nan)
        found = {name: EXACT[name][1](values) for name, values in found.items()}
    return found


def texts(known: Sequence[str], index: NDArray[Any]) -> pyarrow.DictionaryArray:
    """The words at some places, null for -1."""
    import pyarrow as pa

    codes = {word: place for place, word in enumerate(dict.fromkeys(known))}
    at = np.array([*(codes[word] for word in known), -1], np.int32)[index]
    return pa.DictionaryArray.from_arrays(pa.array(at, mask=at < 0), pa.array(list(codes), pa.string()))


def _histogram_columns(histograms: Histograms | None, count: int) -> dict[str, Any]:
    import pyarrow as pa

    found = histograms if histograms is not None else Histograms.none(count)
    low, high = edges(found.keys)
    offsets = pa.array(found.offsets.astype(np.int64))
    return {
        "histogram_seen": pa.array(found.seen),
        "histogram_low": pa.LargeListArray.from_arrays(offsets, pa.array(low)),
        "histogram_high": pa.LargeListArray.from_arrays(offsets, pa.array(high)),
        "histogram_counts": pa.LargeListArray.from_arrays(offsets, pa.array(found.counts)),
    }
