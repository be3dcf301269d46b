"""The records of one worker, decoded frame by frame into columns: looked up by step, or read as a whole."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import (
    FACTS,
    REDUCTIONS,
    ROW_KINDS,
    SCALARS,
    STEPS,
    TENSORS,
    Encoding,
    Fact,
    Reduction,
    RowKey,
    RowKind,
    count,
    of_steps,
)
from watchglass.store import (
    Charges,
    Frame,
    FrameKind,
    Problem,
    Store,
    decode_catalog,
    decode_header,
    decode_lifecycle,
    decode_rows,
    decode_step_rows,
    dtype_of,
    facts_of,
    rows_bytes,
)
from watchglass.tables.catalog import Catalog
from watchglass.tables.payloads import KEPT_BYTES, Payloads
from watchglass.tables.problems import Problems
from watchglass.tables.row_log import RowLog, StepEnds
from watchglass.tables.stored_statistics import StoredStatistics, last_index_of_each

#: Schema that this release reads, the same for all kinds so far. Frames of later schemas are left out.
_SCHEMA = 1
#: Bytes kept in memory per byte of a payload: where it becomes objects, and where it becomes rows with their index.
_PARSED, _INDEXED = 12, 3
#: Frames without a key that are recognised when they come twice: more than a writer buffers while its store refuses.
_FRAMES_SEEN = 4096
#: In place of the step of a row that does not count.
_NO_STEP = -2
#: Kinds of rows about a tensor, other than statistics.
_OF_TENSORS = [kind for kind in of_steps() if kind.of_tensors and not kind.shown_by]


_NOTHING = np.empty(0, dtype_of(STEPS))


@lru_cache(maxsize=256)
def _reading(kind: RowKind) -> tuple[Any, list[tuple[int, dict[int, Any]]], Callable[[Any], Any]]:
    """How rows are read: their key, places of numbers with names, and what makes one from its values."""
    names = [field.name for field in kind.fields]
    key = itemgetter(*(names.index(name) for name in kind.unique)) if kind.unique else None
    numbers: list[tuple[int, dict[int, Any]]] = [
        (place, {int(each): each for each in field.values})
        for place, field in enumerate(kind.fields)
        if field.values is not None
    ]
    return key, numbers, partial(tuple.__new__, kind.shown)


class WorkerTables:
    """Everything one worker of one attempt recorded so far. For one thread.

    Frames may come in any order of kinds. The records of a step are complete once :attr:`steps` has the step.

    Args:
        store: The store of payloads that frames do not hold, and of compacted statistics.
        steps: Keep only what belongs to TRAIN steps of this half-open range, or to evaluations after one of them;
            catalog, facts of the run and lifecycle are kept in any case. None keeps everything.
        kept_bytes: Bytes of payloads that all readers of the store keep together.

    Attributes:
        catalog: The meaning of tensor ids; grows in place.
        steps: Ends of steps by global step.
        lifecycle: ``joined`` and ``left`` events.
        headers: Header of each segment: worker's clocks paired, host, process.
        statistics: The rows of statistics.
    """

    def __init__(
        self, store: Store | None = None, *, steps: tuple[int, int] | None = None, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self.catalog = Catalog()
        self.steps = StepEnds()
        self.lifecycle: list[dict[str, Any]] = []
        self.headers: list[dict[str, Any]] = []
        self._problems = Problems()
        self._range = steps
        self._open: list[Frame] = []
        self._wanted: NDArray[np.uint64] | None = None
        self._left_out: list[DamagedDataError] = []
        self._rows: dict[RowKind, RowLog] = {}
        # Where rows have no key by which the last one could count: a writer that repeats a failed write sends the same
        # frames again.
        self._frames_seen: dict[int, None] = {}
        # Not self: objects that only a cycle keeps alive stay in memory for long.
        self.statistics = StoredStatistics(store, self._problems.add, kept_bytes)
        self._payloads = Payloads(store, kept_bytes)
        self._charges = Charges()
        if steps is not None:
            self.statistics.within = (0, 0)

    def snapshot(self) -> WorkerTables:
        """A copy of the present state, which later frames do not change. For any number of threads."""
        found = copy(self)
        found.catalog, found._rows = self.catalog.snapshot(), dict(self._rows)
        found.lifecycle, found.headers = list(self.lifecycle), list(self.headers)
        found.statistics = self.statistics.snapshot()
        return found

    @property
    def problems(self) -> list[Problem]:
        """Frames, and rows of frames, with invalid content; they are omitted."""
        self.statistics.look_into()
        return self.known_problems

    @property
    def known_problems(self) -> list[Problem]:
        """Those of them that were found so far: of frames of statistics, only what was decoded for a reader."""
        return self._problems.all()

    def ingest(self, frame: Frame) -> NDArray[Any]:
        """Take in one frame; returns its rows if they are ends of steps, which may be known, or also of the run.

        Unknown kinds and schemas are left out. Invalid content becomes one of :attr:`problems`.
        """
        if frame.schema != _SCHEMA:
            return _NOTHING
        self.statistics.found_in(frame.source)
        kind = ROW_KINDS.get(frame.kind, STEPS)
        if self._range is not None and kind in of_steps() and not kind.of_run:
            # Only the end of a step shows whether the step is wanted.
            self._open.append(frame)
            return _NOTHING
        return self._take(frame)

    def _take(self, frame: Frame) -> NDArray[Any]:
        self._left_out = []
        try:
            added = self._add(frame)
        except DamagedDataError as error:
            self._problems.add(frame, error)
            return _NOTHING
        if self._left_out:
            others = f" (and {count(len(self._left_out) - 1, 'more row')})" if len(self._left_out) > 1 else ""
            self._problems.add(frame, DamagedDataError(f"{self._left_out[0]}{others}"))
        return added

    def _add(self, frame: Frame) -> NDArray[Any]:
        kind, payload = frame.kind, frame.payload
        if kind == FrameKind.STATISTICS:
            self.statistics.add(frame)
        elif kind == FrameKind.STEP_ENDS:
            return self._add_ends(payload)
        elif kind == FrameKind.HEADER:
            self._charges.add(_PARSED * len(payload))
            self.headers.append(decode_header(payload))
        elif kind == FrameKind.CATALOG:
            self._charges.add(_PARSED * len(payload))
            for row in decode_catalog(payload, self._left_out):
                self.catalog.add(row)
        elif kind == FrameKind.LIFECYCLE:
            self._charges.add(_PARSED * len(payload))
            self.lifecycle.append(decode_lifecycle(payload))
        elif kind == FrameKind.COMPACTED:
            self.statistics.add_block(frame)
        elif (rows := ROW_KINDS.get(kind)) is not None and rows.key is not RowKey.RUN:
            return self._add_rows(rows, frame)
        return _NOTHING

    def log(self, kind: RowKind) -> RowLog:
        """The rows of a kind as they arrived; another log when there are more."""
        if kind not in self._rows:
            self._rows[kind] = RowLog(dtype_of(kind), kind.key.value)
        return self._rows[kind]

    def rows(self, kind: RowKind, global_step: int, catalog: Catalog | None = None) -> list[Any]:
        """The rows of a kind at a step, of those that agree in their key the last one, as :attr:`RowKind.shown`.

        Rows are omitted whose tensor is not in the catalog, and rows with numbers of a later release.

        Args:
            kind: A kind that is shown as rows.
            global_step: The step.
            catalog: The meaning of the tensor ids; :attr:`catalog` if None.
        """
        rows = self.log(kind).at(global_step).tolist()
        if not rows:
            return []
        key, numbers, new = _reading(kind)
        if key is not None and len(rows) > 1:
            rows = list({key(row): row for row in rows}.values())
        for place, members in numbers:
            rows = [(*row[:place], members[row[place]], *row[place + 1 :]) for row in rows if row[place] in members]
        if not kind.of_tensors:
            return [new(row[1:]) for row in rows]
        known = (self.catalog if catalog is None else catalog).get
        return [new((tensor, *row[2:])) for row in rows if (tensor := known(row[1])) is not None]

    def step_rows(self, global_step: int, catalog: Catalog) -> dict[RowKind, list[Any]]:
        """See :meth:`rows`, of all kinds that the step has."""
        kinds = [kind for kind in self._rows if kind.key is RowKey.STEP and not kind.shown_by]
        return {kind: rows for kind in kinds if (rows := self.rows(kind, global_step, catalog))}

    def facts(self, global_step: int | None = None, kind: str | None = None, *, since: int = 0) -> list[Fact]:
        """Facts of a step, of the run (-1), or all of them in the order of steps (None).

        Args:
            global_step: The step.
            kind: Only those of this kind.
            since: Of all, leave out the first ones that arrived, as many.
        """
        log = self.log(FACTS)
        rows = log.rows[since:] if global_step is None else log.at(global_step)
        if kind is not None:
            rows = rows[rows["kind"] == kind]
        if global_step is None:
            order = np.argsort(rows["global_step"], kind="stable")
            rows = rows[order[rows["global_step"][order] > _NO_STEP]]
        return facts_of(rows)

    def columns(self, kind: RowKind) -> dict[str, Any]:
        """All rows of a kind but statistics by field, by step or time; of those that stand twice the last one.

        Fields of kinds that are written as JSON are lists of plain JSON values.
        """
        rows: list[dict[str, Any]]
        if kind is TENSORS:
            rows = [row.to_json() for row in self.catalog.select()]
        else:
            table = self.steps.log.latest if kind is STEPS else self.log(kind).unique(kind.unique)
            table = table[table["global_step"] > _NO_STEP] if kind.of_run else table
            return {field.name: table[field.name] for field in kind.fields}
        return {field.name: [row[field.name] for row in rows] for field in kind.fields}

    def scalar_history(self, tensor_id: int) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64]]:
        """One scalar by step, the last row of each: global steps u64[n], values float64[n] and weights float64[n]."""
        rows = self.log(SCALARS).of_tensor(tensor_id)
        rows = rows[last_index_of_each(rows["global_step"])]
        return rows["global_step"], rows["value"], rows["weight"].astype(np.float64)

    def reduction_history(self, tensor_id: int, reduction: Reduction) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """All values of an exact reduction of one tensor: global steps u64[n] and values float64[n], by step."""
        rows = self.log(REDUCTIONS).of_tensor(tensor_id)
        rows = rows[rows["reduction"] == reduction]
        rows = rows[last_index_of_each(rows["global_step"])]
        return rows["global_step"], rows["value"].astype(np.float64)

    def captured(self, tensor_id: int) -> set[int]:
        """Global steps that have anything of a tensor: a scalar, statistics, a reduction or its raw values."""
        found = self.statistics.steps_of(tensor_id)
        return found.union(*(self.log(kind).of_tensor(tensor_id)["global_step"].tolist() for kind in _OF_TENSORS))

    def captured_ids(self, steps: NDArray[np.uint64]) -> set[int]:
        """Ids of the tensors of which :meth:`captured` has any of these global steps."""
        found = self.statistics.ids_of(steps)
        for rows in (self.log(kind).rows for kind in _OF_TENSORS):
            found |= set(np.unique(rows["tensor_id"][np.isin(rows["global_step"], steps)]).tolist())
        return found

    def forget(self, before_global_step: int) -> None:
        """Drop everything of the steps before one, so that a follower's memory stays bounded. The catalog stays."""
        self._charges.forget(before_global_step)
        for kind, log in self._rows.items():
            if kind.key is RowKey.STEP:
                of_run = log.rows[log.rows["global_step"] < 0] if kind.of_run else log.rows[:0]
                self._rows[kind] = log.without(before_global_step).and_then(of_run)
        self.statistics.forget(before_global_step)
        self.steps = self.steps.without(before_global_step)

    def _add_ends(self, payload: bytes) -> NDArray[Any]:
        rows = decode_step_rows(payload)
        self._charges.add(_PARSED * len(payload), max(rows["global_step"].tolist(), default=0))
        if self._range is not None:
            wanted = rows[(self._range[0] <= rows["train_step"]) & (rows["train_step"] < self._range[1])]
            self._settle(wanted["global_step"].tolist(), rows["global_step"].tolist())
            rows = wanted
        self.steps = self.steps.and_then(rows)
        return rows

    def _settle(self, wanted: list[int], ended: list[int]) -> None:
        """Take in what came before ends of steps, as far as it belongs to those of them that are wanted."""
        waiting, self._open = self._open, []
        if wanted:
            first, last = self.statistics.within or (0, 0)
            known = [first, last - 1] if first < last else []
            self.statistics.within = min([*known, *wanted]), max([*known, *wanted]) + 1
            self._wanted = np.array(wanted, np.uint64)
            for frame in waiting:
                self._take(frame)
            self._left_out = []
        unwanted = [step for step in ended if step not in wanted and step not in self.steps]
        for kind, log in self._rows.items():
            dropped = np.isin(log.rows["global_step"], unwanted) if kind.of_run else np.zeros(0, bool)
            if dropped.any():
                rows = log.rows.copy()
                rows[dropped] = (_NO_STEP, *[None] * len(kind.own))
                self._rows[kind] = RowLog(dtype_of(kind), kind.key.value).and_then(rows)

    def _add_rows(self, kind: RowKind, frame: Frame) -> NDArray[Any]:
        if kind.unique is None and kind.key is RowKey.STEP:
            key = hash(frame.payload)
            if key in self._frames_seen:
                return _NOTHING
            self._frames_seen[key] = None
            if len(self._frames_seen) > _FRAMES_SEEN:
                del self._frames_seen[next(iter(self._frames_seen))]
        # A reader may have left the samples of a stream in place; a worker may write samples, too.
        payload = bytes(self._payloads.get(frame))
        rows = decode_rows(kind, payload, self._left_out)
        if kind.key is RowKey.STEP and not kind.of_run and self._wanted is not None:
            rows = rows[np.isin(rows["global_step"], self._wanted)]
        size = _PARSED * len(payload) if kind.encoding is Encoding.JSON else _INDEXED * rows_bytes(rows)
        self._charges.add(size, max(rows["global_step"].tolist(), default=0) if kind.key is RowKey.STEP else None)
        self._rows[kind] = self.log(kind).and_then(rows)
        return rows if kind.of_run else _NOTHING
