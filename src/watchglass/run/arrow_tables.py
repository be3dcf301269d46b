"""The tables of a run: the steps that count for SQL, everything for export.

There is one for each declared kind of rows, and those of what the facts of profiled windows hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import UnknownNameError
from watchglass.records import (
    FACTS,
    FINDINGS,
    ROW_KINDS,
    SAMPLES,
    STATISTICS,
    STEPS,
    TENSORS,
    Field,
    Mode,
    Origin,
    Role,
    RowKey,
    RowKind,
    TensorInfo,
    number_from_json,
    number_to_json,
)
from watchglass.run.clocks import LATEST, wall_times
from watchglass.run.operators import Operators, operators_in
from watchglass.run.python_profiles import PythonProfile, python_profiles_in
from watchglass.run.run_records import RunRecords
from watchglass.run.samples import long_form
from watchglass.run.statistics_query import FIELDS, Layout, Rows, StatisticsQuery, spans, texts
from watchglass.run.table import Table
from watchglass.run.waiting import reading_again
from watchglass.run.worker import Worker
from watchglass.tables import Selection, StreamPart, WorkerTables

_Columns = dict[str, Any]


def _of_windows(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    numbers = ("attempt", "first_step", "end_step", "request")
    return pa.schema([("worker", pa.string()), *((name, pa.int64()) for name in numbers), *columns])


#: Tables of profiled windows: operators, the operators of each module, memory, Python functions.
WINDOW_TABLES: dict[str, pa.Schema] = {
    "operators": _of_windows(
        ("operator", pa.string()), ("calls", pa.int64()), ("self_cpu_s", pa.float64()), ("cpu_s", pa.float64()),
        ("self_device_s", pa.float64()), ("device_s", pa.float64()), ("self_memory_bytes", pa.int64()),
        ("self_device_memory_bytes", pa.int64()), ("on_device", pa.bool_()),
    ),
    "module_operators": _of_windows(
        ("model", pa.int64()), ("module", pa.string()), ("backward", pa.bool_()), ("operator", pa.string()),
        ("calls", pa.int64()), ("self_cpu_s", pa.float64()), ("self_device_s", pa.float64()), ("on_device", pa.bool_()),
    ),
    "memory_categories": _of_windows(
        ("device", pa.string()), ("category", pa.string()), ("size_bytes", pa.int64()),
    ),
    "functions": _of_windows(
        ("profiler", pa.string()), ("function", pa.string()), ("file", pa.string()), ("line", pa.int64()),
        ("calls", pa.int64()), ("self_s", pa.float64()), ("total_s", pa.float64()),
    ),
}  # fmt: skip
#: Rows of statistics that are read at a time; bounds memory to some 100 MB.
_ROWS = 1 << 17
#: Times of samples that are read at a time.
_SAMPLES = 4096


def table_names() -> tuple[str, ...]:
    """Names of all tables of a run."""
    return (*(kind.name for kind in ROW_KINDS.values()), *WINDOW_TABLES)


def table_of(run: RunRecords, name: str, words: frozenset[str] | None = None) -> Table:
    """A table by name.

    Args:
        run: The run.
        name: One of :func:`table_names`.
        words: The words of a query, to leave out statistics that it does not name. None for all.

    Raises:
        UnknownNameError: There is no such table.
    """
    if name in WINDOW_TABLES:
        return Table(name, lambda: RunTables(run).of_windows(name))
    kinds = {kind.name: kind for kind in ROW_KINDS.values()}
    names = table_names()
    if name not in kinds:
        raise UnknownNameError(f"there is no table {name!r}{suggest(name, names)}; tables are {', '.join(names)}")
    if kinds[name] is STATISTICS:
        fields = None if words is None else tuple(field for field in FIELDS if field in words)
        query = StatisticsQuery(Selection(), Mode.GLOBAL, None, "all", fields=fields)
        return Table(name, lambda: reading_again(run, lambda: query.read(query.team(run))))
    return Table(name, lambda: pa.concat_tables(RunTables(run).pieces(kinds[name])).unify_dictionaries())


def fields_named(query: str) -> frozenset[str] | None:
    """The words of a query; None where it may return columns that it does not name."""
    text = re.sub(r"count\s*\(\s*\*\s*\)", "", query.lower())
    words = re.findall(r"\w+", text)
    # SELECT *, COLUMNS(...), FROM first, SUMMARIZE, and the like.
    hidden = {"columns", "summarize", "describe", "natural", "pivot", "unpivot", "table", "show"}
    if "*" in text or hidden & set(words) or words.count("select") < words.count("from"):
        return None
    return frozenset(words)


class RunTables:
    """The tables of a run in pieces of bounded size, the first one without rows.

    Args:
        run: The run.
        everything: Also rows that SQL does not show, with two more columns: ``counts`` (whether the step counts) and
            ``origin``. Global steps are then those of the attempt.
        histograms: Also the histograms of statistics, which are only read with ``everything``.
    """

    def __init__(self, run: RunRecords, *, everything: bool = False, histograms: bool = False) -> None:
        self._run, self._histograms = run, histograms
        none = _WorkerAttempt(Worker("", {}), 0, WorkerTables(), everything=everything)
        self._attempts = [none] + [
            _WorkerAttempt(run.worker(name), attempt, tables, everything=everything)
            for name in run.workers
            for attempt, tables in run.worker(name).attempts.items()
        ]
        self._streams = [
            _WorkerAttempt(Worker(name, {}), part.attempt, part.tables, stream=part)
            for name in run.streams
            for part in run.reading.streams.parts[name]
            if run.fixed_attempt in (None, part.attempt)
        ]

    def of_windows(self, name: str) -> pa.Table:
        """One of :data:`WINDOW_TABLES`, in the order of windows, the rows of the most time first."""
        rows = [
            {
                "worker": window.worker, "attempt": attempt.attempt, "first_step": window.steps.start,
                "end_step": window.steps.stop, "request": window.request, **row,
            }
            for attempt in self._attempts
            for window, row in _window_rows(name, attempt.worker.name, attempt.tables)
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, WINDOW_TABLES[name])

    def pieces(self, kind: RowKind) -> Iterator[pa.Table]:
        """The table of a kind of rows."""
        if kind is FINDINGS:
            found = [each.to_json() for each in self._run.journal.findings]
            yield pa.table(_columns(kind, {field.name: [row[field.name] for row in found] for field in kind.fields}))
            return
        for attempt in self._attempts + (self._streams if kind.key is RowKey.TIME else []):
            if kind is STATISTICS:
                yield from _statistics(attempt, self._histograms)
            else:
                yield from _samples(attempt) if kind is SAMPLES else _rows(kind, attempt)


def _window_rows(
    name: str, worker: str, tables: WorkerTables
) -> Iterator[tuple[Operators | PythonProfile, dict[str, Any]]]:
    """The windows of a worker, each with each of its rows in a table."""
    if name == "functions":
        for profile in python_profiles_in(worker, tables):
            for function in profile.rows:
                yield profile, {"profiler": profile.profiler, "function": function.name, **asdict(function)}
        return
    of_window: dict[str, Callable[[Operators], Sequence[Any]]] = {
        "operators": lambda window: window.rows,
        "module_operators": lambda window: window.modules,
        "memory_categories": lambda window: window.memory,
    }
    for window in operators_in(worker, tables):
        for row in of_window[name](window):
            values = asdict(row)
            yield window, {**values, "operator": values.get("name")}


class _WorkerAttempt:
    """The records of a worker in an attempt, and the numbers of its steps in the run.

    Args:
        worker: The worker.
        attempt: Number of the attempt.
        tables: Its records in that attempt.
        everything: Also steps that do not count.
        stream: The part of a stream that it is, and no worker.
    """

    def __init__(
        self,
        worker: Worker,
        attempt: int,
        tables: WorkerTables,
        *,
        everything: bool = False,
        stream: StreamPart | None = None,
    ) -> None:
        self.stream = stream
        self.worker, self.attempt, self.tables, self.everything = worker, attempt, tables, everything
        self.ends = tables.steps.log.latest
        # The last one stands for no step.
        self._own, self._mode, self._step, self._number = (
            np.append(self.ends[name], np.array(last, self.ends.dtype[name])).astype(np.int64)
            for name, last in (("global_step", LATEST), ("mode", 0), ("mode_step", 0), ("global_step", 0))
        )
        self._counts = np.zeros(len(self._own), bool)
        numbering = worker.numbering(attempt)
        at = np.searchsorted(self._own, numbering["own"].astype(np.int64))
        self._step[at], self._counts[at] = numbering["step"], True
        if not everything:
            self._number[at] = numbering["number"]

    def places(self, global_steps: Sequence[int] | NDArray[Any]) -> NDArray[np.intp]:
        """The places of these steps in the table; -1 for steps that it lacks."""
        steps = np.minimum(np.asarray(global_steps), LATEST).astype(np.int64)
        at = np.searchsorted(self._own, np.maximum(steps, 0))
        shown = (self._own[at] == steps) & (self._mode[at] > 0) & (self._counts[at] | self.everything)
        return np.where(shown, at, -1)

    def step_columns(self, at: NDArray[np.intp]) -> _Columns:
        """The columns with the steps of rows; null for -1."""
        mode, *numbers = self.numbers(at)
        named = dict(zip(("step", "global_step", "counts"), (*numbers, self._counts[at]), strict=True))
        return {"mode": texts([mode.name for mode in Mode], np.where(at < 0, -1, mode - 1))} | {
            name: pa.array(values, mask=at < 0) for name, values in named.items() if name != "counts" or self.everything
        }

    def numbers(self, at: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Modes, steps and global steps."""
        return self._mode[at], self._step[at], self._number[at]

    def front(self, kind: RowKind, count: int) -> _Columns:
        """The columns that all rows of a kind have."""
        writer, none = (texts([self.worker.name], np.full(count, at)) for at in (0, -1))
        columns = {"attempt": pa.array([self.attempt] * count, pa.int64()), "worker": writer}
        if kind.key is RowKey.TIME:
            columns |= {"worker": none, "stream": writer} if self.stream is not None else {"stream": none}
        return columns

    def wall(self, monotonic_ns: NDArray[Any]) -> Any:
        """Times of the worker's clock as wall time, by the last segment header before each."""
        return pa.array(wall_times(self.tables.headers, monotonic_ns)).cast(pa.timestamp("ns", "UTC"))


def _rows(kind: RowKind, of: _WorkerAttempt) -> Iterator[pa.Table]:
    """The rows of a kind that a worker recorded in an attempt."""
    values = of.tables.columns(kind)
    rows = np.arange(len(next(iter(values.values()))))
    if kind.key is RowKey.STEP:
        at = of.places(values["global_step"])
        keep = at >= 0
        if kind is FACTS:  # also facts of the run, and of a step that never ended
            steps = np.array(values["global_step"], np.int64)
            last = of.attempt == max(of.worker.attempts, default=0)
            keep |= (steps < 0) | ((of.everything or last) & ~np.isin(steps, of.ends["global_step"].astype(np.int64)))
        rows = np.flatnonzero(keep)
    elif kind is TENSORS and not of.everything:
        infos, known = of.worker.infos(), of.tables.catalog.select()
        rows = np.array([place for place, row in enumerate(known) if infos[row.name] is row], np.intp)
    for field in kind.own:
        if field.values is not None and rows.size:
            rows = rows[np.isin(np.asarray(values[field.name])[rows], [int(each) for each in field.values])]
    values = {
        name: column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]
        for name, column in values.items()
    }
    columns = of.front(kind, len(rows))
    if kind.key is RowKey.STEP:
        columns |= of.step_columns(at[rows])
    elif kind.key is RowKey.TIME:
        columns |= {"time": of.wall(values["time_ns"])}
    if kind is STEPS:
        begin, end = (np.minimum(values[name], LATEST).astype(np.int64) for name in ("start_ns", "end_ns"))
        whole = {name: pa.array(values[name], pa.int64()) for name in ("train_step", "captures", "model")}
        columns |= whole | {"began": of.wall(begin), "seconds": (end - begin) / 1e9}
    else:
        columns |= _columns(kind, values, of.tables)
    yield pa.table(columns)


def _samples(of: _WorkerAttempt) -> Iterator[pa.Table]:
    """The samples of a stream or worker, with one row for each time, metric and instance that has a value."""
    pieces = [of.tables.log(SAMPLES).unique(None)] if of.stream is None else of.stream.samples.pieces(_SAMPLES)
    for rows in pieces:
        time_ns, *texts_of, value = long_form(rows)
        columns = {name: pa.array(each, pa.string()).dictionary_encode()
                   for name, each in zip(("metric", "instance", "unit"), texts_of, strict=True)}  # fmt: skip
        yield pa.table(
            of.front(SAMPLES, len(value)) | {"time": of.wall(time_ns)} | columns | {"value": pa.array(value)}
        )


def _columns(kind: RowKind, values: _Columns, tables: WorkerTables | None = None) -> _Columns:
    """The fields of rows as columns: tensors by name and role, numbers of enumerations as words."""
    columns: _Columns = {}
    for field in kind.own:
        if field.name == "tensor_id" and kind is not TENSORS and tables is not None:
            columns |= _names(tables, np.asarray(values["tensor_id"], np.int64))
        else:
            name = "tensor" if (kind, field.name) == (TENSORS, "name") else field.name
            columns[name] = _array(field, values[field.name])
    return columns


def _array(field: Field, values: Any) -> Any:
    """One column of Arrow."""
    types = {"f32": pa.float64(), "f64": pa.float64(), "bool": pa.bool_(), "text": pa.string(), "json": pa.string()}
    kind = types.get(field.type, pa.int64())
    if field.values is not None:
        words = {int(each): each.name.lower() for each in field.values}
        return texts([words.get(number, "") for number in range(max(words) + 1)], np.asarray(values, np.int64))
    if field.array:
        return pa.array([list(each) for each in values], pa.list_(kind))
    if field.type == "text":
        return pa.array(values, kind).dictionary_encode()
    if field.type == "json":
        return pa.array([json.dumps(each, default=number_to_json) for each in values], kind)
    if field.type.startswith("f") and not isinstance(values, np.ndarray):
        values = [number_from_json(each) for each in values]
    elif field.type == "u64":
        values = np.minimum(values, LATEST)
    return pa.array(values, from_pandas=False).cast(kind) if len(values) else pa.array([], kind)


def _names(tables: WorkerTables, ids: NDArray[Any]) -> _Columns:
    """Names and roles of tensors by id; a tensor that the catalog lacks has its id as its name."""
    known, at = np.unique(ids, return_inverse=True)
    rows = [tables.catalog.get(int(tensor_id)) for tensor_id in known]
    names = [row.name if row is not None else str(each) for row, each in zip(rows, known.tolist(), strict=True)]
    roles = [row.role.value if row is not None else "" for row in rows]
    return {"tensor": texts(names, at), "role": texts(roles, at)}


def _statistics(of: _WorkerAttempt, histograms: bool) -> Iterator[pa.Table]:
    """All statistics of an attempt, also those captured because of a finding."""
    ids = sorted({row.tensor_id for row in of.tables.catalog.select()})
    for first, stop in spans(of.ends["global_step"], np.maximum(of.ends["captures"], 1), _ROWS) or [(0, 0)]:
        batch = of.tables.statistics.read(global_steps=(first, stop), planned_only=False, histograms=histograms)
        batch = batch.take(of.places(batch.global_step) >= 0)
        ids = sorted({*ids, *np.unique(batch.tensor_id).tolist()})
        infos = [of.tables.catalog.get(each) or TensorInfo(each, str(each), Role.CUSTOM) for each in ids]
        query = StatisticsQuery(Selection(), Mode.GLOBAL, None, "all", histograms=histograms)
        layout = Layout(infos, [of.worker.name], query)
        at = of.places(batch.global_step)
        place = np.searchsorted(np.array(ids), batch.tensor_id)
        found = layout.table(Rows(of.attempt, *of.numbers(at), place, batch, {}), np.zeros(len(at), np.int64))
        origin = np.minimum(batch.origin, len(Origin) - 1)
        yield found.append_column("counts", of.step_columns(at)["counts"]).append_column(
            "origin", texts([each.name.lower() for each in Origin], origin)
        )
