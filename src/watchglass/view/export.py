"""A run as Parquet files for other tools: tidy tables with names instead of numbers. docs/cli.md lists the columns."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.config import local_path, scheme_of
from watchglass.errors import InvalidValueError, RunExistsError, StoreError
from watchglass.records import COUNT_FIELDS, STATISTIC_FIELDS, Mode, Origin, StepEnd
from watchglass.run import Run, Worker, WorkerTables
from watchglass.stats import Histograms, column, edges

#: Rows of statistics that are read and written at a time; bounds memory to some 100 MB.
_ROWS = 1 << 17
_DERIVED = ("mean", "std", "zero_ratio")
_Columns = dict[str, Any]


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        name: Its name.
        rows: Number of its rows.
        bytes: Its length.
    """

    name: str
    rows: int
    bytes: int


def check_export_path(path: str) -> Path:
    """Where an export may go: a folder that does not exist or is empty.

    Raises:
        InvalidValueError: It is an address of an object store.
        RunExistsError: Something is there.
    """
    if scheme_of(path):
        raise InvalidValueError(f"an export is written to a folder but got {path!a}; copy the files from there")
    target = Path(os.path.abspath(local_path(path)))
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise RunExistsError(f"{target} exists and is not an empty folder; choose another or remove it first")
    return target


def export_parquet(
    run: Run, path: str, *, histograms: bool = False, tick: Callable[[], None] = lambda: None
) -> list[Exported]:
    """Write the tables of a run, all attempts and workers, as Parquet files into a new folder.

    The folder appears when everything is in it. Statistics are read and written in pieces, so memory does not grow
    with their number.

    Args:
        run: The run.
        path: A folder that does not exist or is empty.
        histograms: Also the histograms, as lists in the table of statistics.
        tick: Called now and then.

    Raises:
        InvalidValueError: The path is an address of an object store.
        RunExistsError: Something is there.
        StoreError: It cannot be written.
    """
    target = check_export_path(path)
    temporary = target.with_name(f".{target.name}.watchglass-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.makedirs(target.parent, exist_ok=True)
        os.mkdir(temporary)
        try:
            written = _write_tables(run, temporary, histograms, tick)
            with suppress(FileNotFoundError):
                target.rmdir()  # empty, or not ours to remove
            os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        if isinstance(error, (StoreError, RunExistsError)):
            raise
        raise StoreError(f"cannot write {target}: {error.strerror or error}; check the folder and the disk") from error
    return written


def _write_tables(run: Run, folder: Path, histograms: bool, tick: Callable[[], None]) -> list[Exported]:
    import pyarrow.parquet as pq

    schemas = _schemas(histograms)
    description = json.dumps({"run": run.manifest.run_id, "written_by": "watchglass"})
    rows = dict.fromkeys(schemas, 0)
    with ExitStack() as stack:
        writers = {}
        for name, schema in schemas.items():
            known = schema.with_metadata({"watchglass": description})
            writers[name] = stack.enter_context(pq.ParquetWriter(folder / f"{name}.parquet", known, compression="zstd"))

        def write(name: str, columns: _Columns) -> None:
            table = _table(schemas[name], columns, run.manifest.run_id)
            if len(table):
                writers[name].write_table(table)
                rows[name] += len(table)

        for worker_name in run.workers:
            worker = run.worker(worker_name)
            for attempt, tables in worker.attempts.items():
                _write_worker(write, worker, attempt, tables, histograms, tick)
        write("findings", _findings(run))
    return [Exported(f"{name}.parquet", rows[name], (folder / f"{name}.parquet").stat().st_size) for name in schemas]


def _write_worker(
    write: Callable[[str, _Columns], None],
    worker: Worker,
    attempt: int,
    tables: WorkerTables,
    histograms: bool,
    tick: Callable[[], None],
) -> None:
    steps = _Steps(worker, attempt, tables)
    write("tensors", _tensors(steps, tables))
    write("steps", _step_rows(steps, tables))
    write("scalars", _scalars(steps, tables))
    write("facts", _facts(steps, tables))
    for first, stop in _pieces(steps.ends):
        tick()
        batch = tables.read_statistics(global_steps=(first, stop), planned_only=False, histograms=histograms)
        known = np.isin(batch.global_step, steps.own)
        batch = batch if known.all() else batch.take(known)
        columns = steps.columns(batch.global_step) | _names(tables, batch.tensor_id, module=True)
        columns |= {"calls": batch.calls, "sampled": batch.sampled}
        columns["origin"] = _picked([each.name.lower() for each in Origin], np.minimum(batch.origin, len(Origin) - 1))
        for name in (*STATISTIC_FIELDS, *_DERIVED):
            values = column(batch.values, name)
            columns[name] = values.astype(np.uint64) if name in COUNT_FIELDS else values
        if histograms:
            found = batch.histograms if batch.histograms is not None else Histograms.none(len(batch))
            columns |= _histograms(found)
        write("statistics", columns)


class _Steps:
    """The steps that a worker ended in an attempt, and their numbers in the run."""

    def __init__(self, worker: Worker, attempt: int, tables: WorkerTables) -> None:
        self.worker, self.attempt = worker.name, attempt
        self.ends: list[StepEnd] = [tables.steps[step] for step in sorted(tables.steps)]
        self.own = np.array([end.global_step for end in self.ends], np.uint64)
        self._mode = np.array([int(end.mode) for end in self.ends], np.int64)
        self._step = np.array([end.mode_step for end in self.ends], np.int64)
        self._counts = np.zeros(len(self.ends), bool)
        numbering = worker.numbering(attempt)
        at = np.searchsorted(self.own, numbering.own)
        self._step[at], self._counts[at] = numbering.step, True

    def columns(self, global_steps: NDArray[Any]) -> _Columns:
        """The columns that say of which step rows are."""
        at = np.searchsorted(self.own, np.asarray(global_steps, np.uint64))
        return {
            "attempt": np.full(len(at), self.attempt), "worker": _picked([self.worker], np.zeros(len(at), np.int64)),
            "mode": _picked([mode.name for mode in Mode], self._mode[at] - 1), "step": self._step[at],
            "global_step": self.own[at], "counts": self._counts[at],
        }  # fmt: skip


def _pieces(ends: list[StepEnd]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of global steps that together have all steps, each with a bounded number of rows."""
    first, rows = None, 0
    for end in ends:
        if first is not None and rows + end.captures > _ROWS:
            yield first, end.global_step
            first, rows = None, 0
        first = end.global_step if first is None else first
        rows += max(end.captures, 1)
    if first is not None:
        yield first, ends[-1].global_step + 1


def _tensors(steps: _Steps, tables: WorkerTables) -> _Columns:
    rows = tables.catalog.select()
    columns: _Columns = {
        name: [getattr(row, name) for row in rows]
        for name in ("tensor_id", "module", "module_type", "layer_index", "dtype", "unit_axis", "trainable",
                     "placement", "model")
    }  # fmt: skip
    return columns | {
        "attempt": [steps.attempt] * len(rows), "worker": [steps.worker] * len(rows),
        "tensor": [row.name for row in rows], "role": [row.role.value for row in rows],
        "shape": [list(row.shape) for row in rows], "collections": [list(row.collections) for row in rows],
    }  # fmt: skip


def _step_rows(steps: _Steps, tables: WorkerTables) -> _Columns:
    ends = steps.ends
    latest = (1 << 63) - 1
    start = np.array([min(end.start_ns, latest) for end in ends], np.int64)
    stop = np.array([min(end.end_ns, latest) for end in ends], np.int64)
    return steps.columns(steps.own) | {
        "train_step": [end.train_step for end in ends], "captures": [end.captures for end in ends],
        "model": [end.model for end in ends],
        "began": _wall_ns(start, tables), "seconds": (stop - start) / 1e9,
    }  # fmt: skip


def _wall_ns(monotonic_ns: NDArray[np.int64], tables: WorkerTables) -> NDArray[np.int64]:
    """Wall time of moments of the worker's clock, by the header of the segment that was begun last before each."""
    pairs = sorted(
        (header["monotonic_ns"], header["wall_ns"])
        for header in tables.headers
        if _is_time(header.get("monotonic_ns")) and _is_time(header.get("wall_ns"))
    )
    if not pairs:
        return np.zeros(len(monotonic_ns), np.int64)
    begun, wall = np.array(pairs, np.int64).T
    at = np.maximum(np.searchsorted(begun, monotonic_ns, "right") - 1, 0)
    return np.asarray(wall[at] + monotonic_ns - begun[at])


def _is_time(value: object) -> bool:
    """Whether a number of a header, which is foreign JSON, is one of nanoseconds."""
    return type(value) is int and 0 <= value < 1 << 62


def _scalars(steps: _Steps, tables: WorkerTables) -> _Columns:
    rows = [(step, row) for step in steps.own.tolist() for row in tables.scalars(step)]
    table = np.array([row for _, row in rows], np.float64).reshape(-1, 3)
    columns = steps.columns(np.array([step for step, _ in rows], np.uint64))
    columns |= _names(tables, table[:, 0].astype(np.uint32))
    return columns | {"value": table[:, 1], "weight": table[:, 2]}


def _facts(steps: _Steps, tables: WorkerTables) -> _Columns:
    """Facts of the run have no step."""
    facts = [fact for fact in tables.facts() if fact.global_step < 0 or fact.global_step in tables.steps]
    of_steps = [fact.global_step for fact in facts if fact.global_step >= 0]
    numbered = steps.columns(np.array(of_steps, np.uint64))
    columns: _Columns = {}
    for name in ("mode", "step", "global_step", "counts"):
        values = iter(numbered[name].tolist())
        columns[name] = [next(values) if fact.global_step >= 0 else None for fact in facts]
    return columns | {
        "attempt": [steps.attempt] * len(facts), "worker": [steps.worker] * len(facts),
        "kind": [fact.kind for fact in facts], "source": [fact.source for fact in facts],
        "data": [json.dumps(fact.data) for fact in facts],
    }  # fmt: skip


def _findings(run: Run) -> _Columns:
    rows = run.journal.findings
    columns: _Columns = {
        name: [getattr(row, name) for row in rows]
        for name in ("id", "rule", "attempt", "worker", "step", "last_step", "count", "global_step", "value", "limit",
                     "message")
    }  # fmt: skip
    return columns | {
        "severity": [row.severity.value for row in rows], "mode": [row.mode.name for row in rows],
        "tensors": [list(row.tensors) for row in rows], "causes": [list(row.causes) for row in rows],
        "try": [list(row.what_to_try) for row in rows], "evidence": [json.dumps(row.evidence) for row in rows],
    }  # fmt: skip


def _names(tables: WorkerTables, ids: NDArray[Any], *, module: bool = False) -> _Columns:
    """What tensor ids mean: a number in place of the name of a tensor that the catalog lacks."""
    known, at = np.unique(ids, return_inverse=True)
    rows = [tables.catalog.get(int(tensor_id)) for tensor_id in known]
    names = [row.name if row is not None else str(each) for row, each in zip(rows, known.tolist(), strict=True)]
    columns = {
        "tensor": _picked(names, at), "role": _picked([row.role.value if row is not None else "" for row in rows], at)
    }  # fmt: skip
    if module:
        columns["module"] = _picked([row.module if row is not None else "" for row in rows], at)
        columns["module_type"] = _picked([row.module_type if row is not None else "" for row in rows], at)
    return columns


def _histograms(found: Histograms) -> _Columns:
    import pyarrow as pa

    low, high = edges(found.keys)
    offsets = pa.array(found.offsets.astype(np.int32))
    lists = {"histogram_low": low, "histogram_high": high, "histogram_count": found.counts}
    columns: _Columns = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in lists.items()}
    return columns | {"histogram_seen": found.seen}


def _picked(words: list[str], index: NDArray[Any]) -> Any:
    """The words at some places, as an Arrow array."""
    import pyarrow as pa

    return pa.array(words, pa.string()).take(pa.array(np.asarray(index, np.int64).reshape(-1)))


def _table(schema: Any, columns: _Columns, run_id: str) -> Any:
    import pyarrow as pa

    rows = len(columns["attempt"])
    columns = columns | {"run": _picked([run_id], np.zeros(rows, np.int64))}
    # From pandas' point of view NaN is a missing value; here it is a number that was measured.
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array)
        else pa.array(columns[field.name], field.type, from_pandas=False)
        for field in schema
    ]  # fmt: skip
    return pa.Table.from_arrays([array.cast(field.type) for array, field in zip(arrays, schema, strict=True)],
                                schema=schema)  # fmt: skip


def _schemas(histograms: bool) -> dict[str, Any]:
    """The Arrow schema of each table."""
    import pyarrow as pa

    text, number, whole = pa.string(), pa.float64(), pa.int64()
    worker = {"run": text, "attempt": whole, "worker": text}
    step = {**worker, "mode": text, "step": whole, "global_step": whole, "counts": pa.bool_()}
    tensor = {"tensor": text, "role": text}
    kinds: dict[str, dict[str, Any]] = {
        "steps": {**step, "train_step": whole, "began": pa.timestamp("ns", "UTC"), "seconds": number,
                  "captures": whole, "model": whole},
        "tensors": {**worker, "tensor_id": whole, **tensor, "module": text, "module_type": text, "layer_index": whole,
                    "shape": pa.list_(whole), "dtype": text, "unit_axis": whole, "trainable": pa.bool_(),
                    "placement": text, "collections": pa.list_(text), "model": whole},
        "scalars": {**step, **tensor, "value": number, "weight": number},
        "statistics": {**step, **tensor, "module": text, "module_type": text, "calls": whole, "sampled": pa.bool_(),
                       "origin": text, **{name: whole if name in COUNT_FIELDS else number for name in STATISTIC_FIELDS},
                       **dict.fromkeys(_DERIVED, number)},
        "facts": {**step, "kind": text, "source": text, "data": text},
        "findings": {**worker, "id": text, "rule": text, "severity": text, "mode": text, "step": whole,
                     "last_step": whole, "count": whole, "global_step": whole, "tensors": pa.list_(text),
                     "value": number, "limit": number, "message": text, "causes": pa.list_(text),
                     "try": pa.list_(text), "evidence": text},
    }  # fmt: skip
    if histograms:
        kinds["statistics"] |= {
            "histogram_seen": whole, "histogram_low": pa.list_(number), "histogram_high": pa.list_(number),
            "histogram_count": pa.list_(whole),
        }  # fmt: skip
    return {name: pa.schema(list(columns.items())) for name, columns in kinds.items()}
