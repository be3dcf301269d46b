"""The sources of one worker's statistics: frames of live segments, and compacted blocks of steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.records import STATISTIC_FIELDS, STATISTICS
from watchglass.stats import Histograms
from watchglass.store import (
    Frame,
    ParquetStatistics,
    StatisticsBatch,
    Store,
    compacted_file,
    decode_columns,
    decode_histograms,
    dtype_of,
    has_histograms,
    matrix_of,
    newest_generation,
)
from watchglass.tables.payloads import OnProblem, Payloads, compacted_meanwhile, new_token

#: Most rows of a block that are read at once, for a reader that goes step by step.
_CHUNK_ROWS = 1 << 17
_KEYS = tuple(field.name for field in STATISTICS.own if field.name not in STATISTIC_FIELDS)


class Wanted(NamedTuple):
    """The requested rows and columns."""

    ids: NDArray[np.uint32] | None = None  #: Rows of these tensors; None for all.
    steps: tuple[int, int] | None = None  #: Rows of these global steps, half-open; None for all.
    fields: Sequence[str] = STATISTIC_FIELDS  #: The columns of ``values``.
    histograms: bool = False  #: Also the histograms.


class LiveBatch:
    """The rows of one STATISTICS frame, of which only the requested columns are decoded.

    Args:
        frame: The frame.
        payloads: Returns its payload.
        problem: Called where the frame is invalid; it then has no rows.
    """

    #: What is dropped with it. Names of the module are gone as the process ends.
    _columns = (*_KEYS, *STATISTIC_FIELDS, "rows", "histograms")

    def __init__(self, frame: Frame, payloads: Payloads, problem: OnProblem) -> None:
        self.frame = frame
        self._token = new_token()
        self._payloads, self._problem = payloads, problem
        self._stretches: tuple[NDArray[np.uint64], NDArray[np.intp]] | None = None
        self._damaged = False
        self._has_histograms = False

    def __del__(self) -> None:
        self._payloads.decoded.drop(self._token, self._columns)
        self._payloads.drop(self.frame)

    @property
    def steps(self) -> NDArray[np.uint64]:
        """The global step of each sequence of rows of one step."""
        return self._known[0]

    @property
    def _known(self) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """:attr:`steps`, and the first row of each, with the number of rows at the end."""
        if self._stretches is None:
            self._decoded(())
        assert self._stretches is not None
        return self._stretches

    @property
    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(global step, first row, last row + 1) of each sequence of rows of one step."""
        steps, edges = self._known
        for step, edge in zip(steps.tolist(), pairwise(edges.tolist()), strict=True):
            yield step, *edge

    @property
    def global_step(self) -> NDArray[np.uint64]:
        """u64[n]."""
        steps, edges = self._known
        return np.repeat(steps, np.diff(edges))

    def columns(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Some columns, read-only, n rows each; empty ones where the frame is invalid."""
        kept = {name: self._payloads.decoded.get(self._token, name) for name in names}
        missing = [name for name, column in kept.items() if column is None]
        if missing:
            for name, column in self._decoded(missing).items():
                kept[name] = column
                self._payloads.decoded.put(self._token, name, column, column.nbytes)
        return _no_columns(names) if self._damaged else kept

    def rows(self, fields: Sequence[str]) -> StatisticsBatch:
        """All rows with some columns, without histograms, read-only; none where the frame is invalid."""
        known: tuple[Sequence[str], StatisticsBatch] | None = self._payloads.decoded.get(self._token, "rows")
        if known is not None and known[0] == fields:
            return known[1]
        columns = self._decoded((*_KEYS, *fields))
        steps = self.global_step
        matrix = matrix_of([columns[name] for name in fields], len(steps))
        matrix.flags.writeable = False
        found = StatisticsBatch(steps, values=matrix, histograms=None, **{name: columns[name] for name in _KEYS})
        self._payloads.decoded.put(self._token, "rows", (fields, found), found.nbytes)
        return found

    def _decoded(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Columns of the payload, empty if damaged. The first call finds the steps and whether there are histograms."""
        if not self._damaged:
            try:
                payload = self._payloads.get(self.frame)
                if self._stretches is not None:
                    return decode_columns(payload, names)
                found = decode_columns(payload, ("global_step", *names))
                self._has_histograms = has_histograms(payload)
                self._stretches = _stretches(found.pop("global_step"))
                return found
            except DamagedDataError as error:
                self._damaged, self._stretches = True, _stretches(np.zeros(0, np.uint64))
                self._problem(self.frame, error)
        return _no_columns(names)

    def may_have_histograms(self) -> bool:
        """Whether it has the columns of histograms, which may still turn out invalid."""
        return len(self.steps) > 0 and self._has_histograms

    def histograms(self) -> Histograms | None:
        """The histograms of all rows; None where no row has one."""
        if not self.may_have_histograms():
            return None
        found: Histograms | None = self._payloads.decoded.get(self._token, "histograms")
        if found is None:
            try:
                found = decode_histograms(self._payloads.get(self.frame))
            except DamagedDataError as error:
                self._problem(self.frame, error)
            self._has_histograms = found is not None
            if found is not None:
                self._payloads.decoded.put(self._token, "histograms", found, found.nbytes)
        return found

    def select(self, wanted: Wanted) -> StatisticsBatch | None:
        """The requested rows; None for none."""
        if wanted.steps is not None:
            low, high = wanted.steps
            if not len(self.steps) or int(self.steps.max()) < low or int(self.steps.min()) >= high:
                return None
        columns = self.columns((*_KEYS, *wanted.fields))
        if self._damaged:
            return None
        chosen, numbers = _among(columns["tensor_id"], wanted.ids), self.global_step
        if wanted.steps is not None:
            chosen &= (numbers >= wanted.steps[0]) & (numbers < wanted.steps[1])
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return None
        values = matrix_of([columns[name][rows] for name in wanted.fields], len(rows))
        histograms = None
        if wanted.histograms:
            known = self.histograms()
            histograms = Histograms.none(len(rows)) if known is None else known.take(rows)
        keys = {name: columns[name][rows] for name in _KEYS}
        return StatisticsBatch(global_step=numbers[rows], values=values, histograms=histograms, **keys)


class CompactedBlock:
    """A contiguous block of steps in a Parquet file, read in parts, on demand.

    Args:
        frame: The COMPACTED frame that replaces it.
        store: The store of the file.
        payloads: Keeps the rows that were read.
        problem: Called where the file is invalid; the block then has no rows.

    Attributes:
        first: Least global step.
        last: Greatest global step.

    Raises:
        DamagedDataError: The frame is invalid.
    """

    def __init__(self, frame: Frame, store: Store, payloads: Payloads, problem: OnProblem) -> None:
        self._frame, self._store, self._payloads, self._problem = frame, store, payloads, problem
        self._chunks: set[str] = set()
        self._token = new_token()
        self._at = compacted_file(frame)
        self.first, self.last = self._at.global_steps
        self._file: ParquetStatistics | None = None
        self._damaged = False
        self._lock = Lock()

    def __del__(self) -> None:
        self._payloads.decoded.drop(self._token, self._chunks)

    def select(self, wanted: Wanted) -> StatisticsBatch | None:
        """The requested rows by tensor, then step; None for none."""
        steps = wanted.steps
        if self._damaged or (steps is not None and (self.last < steps[0] or self.first >= steps[1])):
            return None
        ids: Collection[int] | None = None if wanted.ids is None else wanted.ids.tolist()
        try:
            with self._lock:
                if self._file is None:
                    self._file = ParquetStatistics(
                        self._store, self._at.path, size=self._at.bytes, footer_crc=self._at.footer_crc
                    )
                found = self._file.read(
                    tensor_ids=ids, steps=steps, fields=tuple(wanted.fields), histograms=wanted.histograms
                )
        except MissingFileError as error:
            generation = newest_generation(self._store)
            if generation is not None and f"{generation.number:08}" not in self._at.path.split("/"):
                raise compacted_meanwhile(self._store) from error
            self._is_damaged(DamagedDataError(str(error)))
            return None
        except DamagedDataError as error:
            self._is_damaged(error)
            return None
        return found if len(found) else None

    def stretch(self, step: int, fields: Sequence[str]) -> tuple[int, int]:
        """The global steps, half-open, that are read together with one: as many as the cache holds of every worker."""
        steps = self.last - self.first + 1
        rows = max(1, min(_CHUNK_ROWS, self._payloads.decoded.share // (2 * row_bytes(fields))))
        # The number of rows comes from the file: never divide by it.
        length = max(1, min(steps, rows * steps // max(1, self._at.rows)))
        low = self.first + (step - self.first) // length * length
        return low, low + length

    def chunk(
        self, steps: tuple[int, int], fields: Sequence[str], *, histograms: bool = False
    ) -> StatisticsBatch | None:
        """All rows of a :meth:`stretch`, by step, then tensor; None for none."""
        name = f"{steps} {fields} {histograms}"
        found: StatisticsBatch | None = self._payloads.decoded.get(self._token, name)
        if found is None:
            found = self.select(Wanted(None, steps, fields, histograms))
            if found is not None:
                # Rows of one step and tensor stay in their order.
                found = found.take(np.lexsort((found.tensor_id, found.global_step)))
                self._chunks.add(name)
                self._payloads.decoded.put(self._token, name, found, found.nbytes)
        return found

    def histograms(self, steps: tuple[int, int]) -> Histograms | None:
        """The histograms of the rows of :meth:`chunk`, in their order."""
        rows = self.chunk(steps, (), histograms=True)
        return rows.histograms if rows is not None else None

    def _is_damaged(self, error: DamagedDataError) -> None:
        self._damaged = True
        self._problem(self._frame, error)


def row_bytes(fields: Sequence[str]) -> int:
    """Bytes that a decoded row takes: its numbers and its keys."""
    return 8 * len(fields) + 18


def _no_columns(names: Sequence[str]) -> dict[str, NDArray[Any]]:
    return {name: np.zeros(0, dtype_of(STATISTICS)[name]) for name in names}


def _stretches(steps: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """The step of each sequence of equal steps, and the first row of each, with the number of rows at the end."""
    begins = np.flatnonzero(np.append(True, steps[1:] != steps[:-1])[: len(steps)])
    return steps[begins], np.append(begins, len(steps))


def _among(ids: NDArray[np.uint32], wanted: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
    if wanted is None:
        return np.ones(len(ids), bool)
    return np.asarray(ids == wanted[0] if len(wanted) == 1 else np.isin(ids, wanted))
