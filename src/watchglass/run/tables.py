"""What one worker recorded, decoded frame by frame into columns that can be looked up by step or read as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import Fact, Reduction, StepEnd, UnitKind
from watchglass.run.catalog import Catalog
from watchglass.run.histograms import LazyHistograms
from watchglass.run.step_index import StepIndex
from watchglass.run.stored import StatisticsRows, StoredStatistics, last_index_of_each
from watchglass.stats import unpack_units
from watchglass.store import (
    SCALAR_DTYPE,
    Frame,
    FrameKind,
    Problem,
    decode_catalog,
    decode_facts,
    decode_header,
    decode_lifecycle,
    decode_raw_index,
    decode_reductions,
    decode_scalars,
    decode_step_ends,
    decode_units,
    describe,
)

#: Schema that this release reads, the same for all kinds so far. Frames of later schemas are left out.
_SCHEMA = 1
#: So many frames of facts are known again when they come twice; more than wait while a store refuses them.
_FACTS_SEEN = 4096
_REDUCTIONS = {int(reduction) for reduction in Reduction}


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
        problems: Whole frames, and rows of frames, whose content makes no sense; they are left out.
    """

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.steps: dict[int, StepEnd] = {}
        self.lifecycle: list[dict[str, Any]] = []
        self.headers: list[dict[str, Any]] = []
        self.problems: list[Problem] = []
        self._left_out: list[DamagedDataError] = []
        self._scalars = StepIndex[NDArray[Any]]()
        self._reductions = StepIndex[NDArray[Any]]()
        self._statistics = StoredStatistics(lambda frame, error: self.problems.append(describe(frame, error)))
        self._units: dict[int, list[tuple[int, int, int, bytes]]] = {}
        self._facts: dict[int, list[Fact]] = {}
        self._facts_seen: dict[int, None] = {}
        self._raw: dict[int, dict[int, RawPlace]] = {}
        self._ingest: dict[int, Callable[[bytes], None]] = {
            FrameKind.HEADER: lambda payload: self.headers.append(decode_header(payload)),
            FrameKind.CATALOG: self._add_catalog,
            FrameKind.SCALARS: self._add_scalars,
            FrameKind.REDUCTIONS: self._add_reductions,
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
        if frame.schema != _SCHEMA:
            return
        add = self._ingest.get(frame.kind)
        self._left_out = []
        try:
            if frame.kind == FrameKind.STATISTICS:
                self._statistics.add(frame)
            elif add is not None:
                add(frame.payload)
        except DamagedDataError as error:
            self.problems.append(describe(frame, error))
        else:
            if self._left_out:
                others = f" (and {len(self._left_out) - 1} more rows)" if len(self._left_out) > 1 else ""
                self.problems.append(describe(frame, DamagedDataError(f"{self._left_out[0]}{others}")))

    # By step

    def scalars(self, global_step: int) -> list[tuple[int, float, float]]:
        """Scalars of a step as (tensor id, value, weight), one row per tensor (the last one written)."""
        rows = {
            row[0]: row
            for table, start, stop in self._scalars.at(global_step)
            for row in table[["tensor_id", "value", "weight"]][start:stop].tolist()
        }
        return list(rows.values())

    def statistics(self, global_step: int, *, planned_only: bool = True) -> StatisticsRows:
        """Statistics of a step, one row per tensor (the last one written); empty where nothing was captured.

        Args:
            global_step: Worker's step.
            planned_only: Leave out rows that were written because of a finding, which must never feed a rule.
        """
        return self._statistics.at(global_step, planned_only=planned_only)

    def reductions(self, global_step: int) -> dict[tuple[int, Reduction], float]:
        """Exact reductions of a step by tensor id and reduction; those of later releases are left out."""
        return {
            (tensor_id, Reduction(which)): value
            for table, start, stop in self._reductions.at(global_step)
            for tensor_id, which, value in table[["tensor_id", "reduction", "value"]][start:stop].tolist()
            if which in _REDUCTIONS
        }

    def units(self, global_step: int) -> list[tuple[int, UnitKind, NDArray[np.bool_]]]:
        """Bitmaps of a step as (tensor id, kind, bool[units]), the last one written of each tensor and kind.

        Kinds that this release does not know are left out.
        """
        known = {int(kind) for kind in UnitKind}
        rows = {row[:2]: row for row in self._units.get(global_step, ())}
        return [
            (tensor_id, UnitKind(kind), unpack_units(bits, units))
            for tensor_id, kind, units, bits in rows.values()
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
        """One scalar by step, the last row of each: global steps u64[n], values float64[n] and weights float64[n]."""
        tables = self._scalars.tables()
        rows = np.concatenate([t[t["tensor_id"] == tensor_id] for t in tables] or [np.empty(0, SCALAR_DTYPE)])
        rows = rows[last_index_of_each(rows["global_step"])]
        return rows["global_step"], rows["value"], rows["weight"].astype(np.float64)

    def statistics_history(
        self, tensor_id: int, *, planned_only: bool = True
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """All rows of one tensor: global steps u64[n] and values float64[n, 11], by step, one row per step."""
        return self._statistics.of_tensor(tensor_id, planned_only=planned_only)[:2]

    def histogram_history(
        self, tensor_id: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64], LazyHistograms | None]:
        """As :meth:`statistics_history`, with the histograms of the rows; None where no row has one."""
        return self._statistics.of_tensor(tensor_id, planned_only=True)

    def reduction_history(self, tensor_id: int, reduction: Reduction) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """All values of an exact reduction of one tensor: global steps u64[n] and values float64[n], by step."""
        found = {
            step: value
            for table in self._reductions.tables()
            for step, value in table[(table["tensor_id"] == tensor_id) & (table["reduction"] == reduction)][
                ["global_step", "value"]
            ].tolist()
        }
        steps = sorted(found)
        return np.array(steps, np.uint64), np.array([found[step] for step in steps], np.float64)

    def captured(self, tensor_id: int) -> set[int]:
        """Global steps that have anything of a tensor: a scalar, statistics, a reduction or its raw values."""
        found = {step for step, places in self._raw.items() if tensor_id in places}
        for table in (*self._scalars.tables(), *self._reductions.tables()):
            found.update(table["global_step"][table["tensor_id"] == tensor_id].tolist())
        return found | self._statistics.steps_of(tensor_id)

    def captured_ids(self, global_steps: Collection[int]) -> set[int]:
        """Ids of the tensors of which :meth:`captured` has any of these steps."""
        steps = np.fromiter(global_steps, np.uint64, len(global_steps))
        found = {tensor_id for step in global_steps for tensor_id in self._raw.get(step, ())}
        for table in (*self._scalars.tables(), *self._reductions.tables()):
            found.update(np.unique(table["tensor_id"][np.isin(table["global_step"], steps)]).tolist())
        return found | self._statistics.ids_of(steps)

    def forget(self, before_global_step: int) -> None:
        """Drop everything of the steps before one, so that a follower's memory stays bounded. The catalog stays."""
        for index in (self._scalars, self._reductions, self._statistics):
            index.forget(before_global_step)
        tables: tuple[dict[int, Any], ...] = (self.steps, self._units, self._raw, self._facts)
        for table in tables:
            for step in [step for step in table if 0 <= step < before_global_step]:
                del table[step]

    # One for each kind of frame

    def _add_catalog(self, payload: bytes) -> None:
        for row in decode_catalog(payload, self._left_out):
            self.catalog.add(row)

    def _add_scalars(self, payload: bytes) -> None:
        rows = decode_scalars(payload)
        self._scalars.add(rows, rows["global_step"])

    def _add_reductions(self, payload: bytes) -> None:
        rows = decode_reductions(payload)
        self._reductions.add(rows, rows["global_step"])

    def _add_units(self, payload: bytes) -> None:
        batch = decode_units(payload)
        columns = (batch.global_step, batch.tensor_id, batch.kind, batch.units)
        for step, tensor_id, kind, units, bits in zip(*(c.tolist() for c in columns), batch.bits, strict=True):
            self._units.setdefault(step, []).append((tensor_id, kind, units, bits))

    def _add_facts(self, payload: bytes) -> None:
        # Facts have no key by which the last one could count, but a write that failed halfway and was repeated has the
        # same frames again.
        key = hash(payload)
        if key in self._facts_seen:
            return
        self._facts_seen[key] = None
        if len(self._facts_seen) > _FACTS_SEEN:
            del self._facts_seen[next(iter(self._facts_seen))]
        for fact in decode_facts(payload, self._left_out):
            self._facts.setdefault(fact.global_step, []).append(fact)

    def _add_raw(self, payload: bytes) -> None:
        for row in decode_raw_index(payload, self._left_out):
            self._raw.setdefault(row["global_step"], {})[row["tensor_id"]] = RawPlace(row["file"], row["key"])
