"""What one worker recorded, decoded frame by frame into columns that can be looked up by step or read as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import STATISTIC_FIELDS, Fact, Origin, StepEnd, UnitKind
from watchglass.run.catalog import Catalog
from watchglass.stats import unpack_units
from watchglass.store import (
    SCALAR_DTYPE,
    Frame,
    FrameKind,
    Problem,
    StatisticsBatch,
    decode_catalog,
    decode_facts,
    decode_header,
    decode_lifecycle,
    decode_raw_index,
    decode_scalars,
    decode_statistics,
    decode_step_ends,
    decode_units,
    describe,
)

#: Schema that this release reads, the same for all kinds so far. Frames of later schemas are left out.
_SCHEMA = 1

_Table = TypeVar("_Table")


class StatisticsRows(NamedTuple):
    """Statistics of one step: one row per tensor.

    Attributes:
        ids: Tensor ids, uint32[n].
        values: float64[n, 11], columns as :data:`~watchglass.records.STATISTIC_FIELDS`.
        calls: uint32[n], tensors merged into each row.
        sampled: bool[n], whether a row is of a sample of the elements.
    """

    ids: NDArray[np.uint32]
    values: NDArray[np.float64]
    calls: NDArray[np.uint32]
    sampled: NDArray[np.bool_]

    def take(self, index: NDArray[Any] | slice) -> StatisticsRows:
        """Some of the rows, by index, mask or slice."""
        return StatisticsRows(self.ids[index], self.values[index], self.calls[index], self.sampled[index])


class RawPlace(NamedTuple):
    """Where a raw tensor is: path of its safetensors file in the store, and its key in that file."""

    file: str
    key: str


class WorkerTables:
    """Everything one worker of one attempt recorded so far. For one thread.

    Frames may come in any order of kinds; what belongs to a step is complete once :attr:`steps` has the step.

    Attributes:
        catalog: What tensor ids mean; grows in place.
        steps: Ends of steps by global step, in the order in which they arrived.
        lifecycle: ``joined`` and ``left`` events.
        headers: Header of each segment: worker's clocks paired, host, process.
        problems: Whole frames whose content makes no sense; they are left out.
    """

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.steps: dict[int, StepEnd] = {}
        self.lifecycle: list[dict[str, Any]] = []
        self.headers: list[dict[str, Any]] = []
        self.problems: list[Problem] = []
        self._scalars = _StepIndex[NDArray[Any]]()
        self._statistics = _StepIndex[StatisticsBatch]()
        self._units: dict[int, list[tuple[int, int, int, bytes]]] = {}
        self._facts: dict[int, list[Fact]] = {}
        self._raw: dict[int, dict[int, RawPlace]] = {}
        self._ingest: dict[int, Callable[[bytes], None]] = {
            FrameKind.HEADER: lambda payload: self.headers.append(decode_header(payload)),
            FrameKind.CATALOG: self._add_catalog,
            FrameKind.SCALARS: self._add_scalars,
            FrameKind.STATISTICS: self._add_statistics,
            FrameKind.UNITS: self._add_units,
            FrameKind.FACTS: self._add_facts,
            FrameKind.STEP_ENDS: lambda payload: self.steps.update(
                (s.global_step, s) for s in decode_step_ends(payload)
            ),
            FrameKind.LIFECYCLE: lambda payload: self.lifecycle.append(decode_lifecycle(payload)),
            FrameKind.RAW: self._add_raw,
        }

    def ingest(self, frame: Frame) -> None:
        """Take in one frame. Unknown kinds and schemas are left out; nonsense becomes one of :attr:`problems`."""
        add = self._ingest.get(frame.kind)
        if add is None or frame.schema != _SCHEMA:
            return
        try:
            add(frame.payload)
        except DamagedDataError as error:
            self.problems.append(describe(frame, error))

    # By step

    def scalars(self, global_step: int) -> list[tuple[int, float, float]]:
        """Scalars of a step as (tensor id, value, weight), in the order in which they were recorded."""
        return [
            row
            for table, start, stop in self._scalars.at(global_step)
            for row in table[["tensor_id", "value", "weight"]][start:stop].tolist()
        ]

    def statistics(self, global_step: int, *, planned_only: bool = True) -> StatisticsRows:
        """Statistics of a step, one row per tensor (the last one written); empty where nothing was captured.

        Args:
            global_step: Worker's step.
            planned_only: Leave out rows that were written because of a finding, which must never feed a rule.
        """
        parts = [_slice(batch, start, stop, planned_only) for batch, start, stop in self._statistics.at(global_step)]
        if len(parts) != 1:
            rows = StatisticsRows(*map(np.concatenate, zip(*[_NO_ROWS, *parts], strict=True)))
        else:
            rows = parts[0]
        return _last_of_each(rows)

    def units(self, global_step: int) -> list[tuple[int, UnitKind, NDArray[np.bool_]]]:
        """Bitmaps of a step as (tensor id, kind, bool[units]); kinds that this release does not know are left out."""
        known = {int(kind) for kind in UnitKind}
        return [
            (tensor_id, UnitKind(kind), unpack_units(bits, units))
            for tensor_id, kind, units, bits in self._units.get(global_step, ())
            if kind in known
        ]

    def facts(self, global_step: int | None = None) -> list[Fact]:
        """Facts of a step, of the run (-1), or all of them in the order of steps (None)."""
        if global_step is not None:
            return list(self._facts.get(global_step, ()))
        return [fact for step in sorted(self._facts) for fact in self._facts[step]]

    def raw(self, global_step: int) -> dict[int, RawPlace]:
        """Where the raw tensors of a step are, by tensor id."""
        return dict(self._raw.get(global_step, {}))

    # As a whole

    def scalar_history(self, tensor_id: int) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64]]:
        """All values of one scalar: global steps u64[n], values float64[n] and weights float64[n], by step."""
        tables = self._scalars.tables()
        rows = np.concatenate([t[t["tensor_id"] == tensor_id] for t in tables] or [np.empty(0, SCALAR_DTYPE)])
        rows = rows[np.argsort(rows["global_step"], kind="stable")]
        return rows["global_step"], rows["value"], rows["weight"].astype(np.float64)

    def statistics_history(
        self, tensor_id: int, *, planned_only: bool = True
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """All rows of one tensor: global steps u64[n] and values float64[n, 11], by step, one row per step."""
        steps, values = [np.empty(0, np.uint64)], [np.empty((0, len(STATISTIC_FIELDS)))]
        for batch in self._statistics.tables():
            chosen = batch.tensor_id == tensor_id
            if planned_only:
                chosen &= batch.origin == Origin.PLANNED
            if chosen.any():
                steps.append(batch.global_step[chosen])
                values.append(batch.values[chosen])
        all_steps, all_values = np.concatenate(steps), np.concatenate(values)
        order = _last_index_of_each(all_steps)
        return all_steps[order], all_values[order]

    def captured(self, tensor_id: int) -> set[int]:
        """Global steps that have anything of a tensor: a scalar, statistics or its raw values."""
        found = {step for step, places in self._raw.items() if tensor_id in places}
        for table in self._scalars.tables():
            found.update(table["global_step"][table["tensor_id"] == tensor_id].tolist())
        for batch in self._statistics.tables():
            found.update(batch.global_step[batch.tensor_id == tensor_id].tolist())
        return found

    def forget(self, before_global_step: int) -> None:
        """Drop everything of the steps before one, so that a follower's memory stays bounded. The catalog stays."""
        self._scalars.forget(before_global_step)
        self._statistics.forget(before_global_step)
        tables: tuple[dict[int, Any], ...] = (self.steps, self._units, self._raw, self._facts)
        for table in tables:
            for step in [step for step in table if 0 <= step < before_global_step]:
                del table[step]

    # One for each kind of frame

    def _add_catalog(self, payload: bytes) -> None:
        for row in decode_catalog(payload):
            self.catalog.add(row)

    def _add_scalars(self, payload: bytes) -> None:
        rows = decode_scalars(payload)
        self._scalars.add(rows, rows["global_step"])

    def _add_statistics(self, payload: bytes) -> None:
        batch = decode_statistics(payload)
        self._statistics.add(batch, batch.global_step)

    def _add_units(self, payload: bytes) -> None:
        batch = decode_units(payload)
        columns = (batch.global_step, batch.tensor_id, batch.kind, batch.units)
        for step, tensor_id, kind, units, bits in zip(*(c.tolist() for c in columns), batch.bits, strict=True):
            self._units.setdefault(step, []).append((tensor_id, kind, units, bits))

    def _add_facts(self, payload: bytes) -> None:
        for fact in decode_facts(payload):
            self._facts.setdefault(fact.global_step, []).append(fact)

    def _add_raw(self, payload: bytes) -> None:
        for row in decode_raw_index(payload):
            self._raw.setdefault(row["global_step"], {})[row["tensor_id"]] = RawPlace(row["file"], row["key"])


class _StepIndex(Generic[_Table]):
    """Tables as they arrived, and for each step the ranges of rows that belong to it."""

    def __init__(self) -> None:
        self._tables: list[tuple[int, _Table]] = []
        self._ranges: dict[int, list[tuple[_Table, int, int]]] = {}

    def add(self, table: _Table, steps: NDArray[np.uint64]) -> None:
        """Add a table whose rows belong to ``steps``; a run of equal steps is one range."""
        if not len(steps):
            return
        edges = [0, *(np.flatnonzero(steps[1:] != steps[:-1]) + 1).tolist(), len(steps)]
        for start, stop in pairwise(edges):
            self._ranges.setdefault(int(steps[start]), []).append((table, start, stop))
        self._tables.append((int(steps.max()), table))

    def at(self, step: int) -> Sequence[tuple[_Table, int, int]]:
        """The (table, start, stop) of a step."""
        return self._ranges.get(step, ())

    def tables(self) -> list[_Table]:
        """All tables, in the order in which they arrived."""
        return [table for _, table in self._tables]

    def forget(self, before: int) -> None:
        """Drop the ranges of earlier steps; a table goes with the last of its steps."""
        for step in [step for step in self._ranges if step < before]:
            del self._ranges[step]
        self._tables = [(last, table) for last, table in self._tables if last >= before]


_NO_ROWS = StatisticsRows(
    np.empty(0, np.uint32), np.empty((0, len(STATISTIC_FIELDS))), np.empty(0, np.uint32), np.empty(0, bool)
)


def _slice(batch: StatisticsBatch, start: int, stop: int, planned_only: bool) -> StatisticsRows:
    rows = StatisticsRows(batch.tensor_id, batch.values, batch.calls, batch.sampled).take(slice(start, stop))
    planned = batch.origin[start:stop] == Origin.PLANNED
    return rows if not planned_only or planned.all() else rows.take(planned)


def _last_of_each(rows: StatisticsRows) -> StatisticsRows:
    """``rows`` with one row per tensor: a write that failed halfway and was repeated may have left two."""
    if len(rows.ids) < 2 or (rows.ids[1:] > rows.ids[:-1]).all():
        return rows
    last = _last_index_of_each(rows.ids)
    return rows if len(last) == len(rows.ids) else rows.take(np.sort(last))


def _last_index_of_each(keys: NDArray[Any]) -> NDArray[np.intp]:
    """Index of the last row of each key, by key."""
    _, index = np.unique(keys[::-1], return_index=True)
    return np.asarray(len(keys) - 1 - index)
