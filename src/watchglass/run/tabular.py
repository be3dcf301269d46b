"""The tables of a run that SQL sees: scalars, steps, tensors, facts, findings, and statistics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from watchglass.config import suggest
from watchglass.errors import DamagedDataError, UnknownNameError
from watchglass.records import Mode, number_to_json
from watchglass.run.selection import Selection
from watchglass.run.statistics_table import FIELDS, StatisticsQuery
from watchglass.run.table import Table
from watchglass.run.waiting import reading_again
from watchglass.run.worker import Worker

if TYPE_CHECKING:
    import pyarrow

    from watchglass.run.run import Run

_Columns = dict[str, list[Any]]


def table_of(run: Run, name: str, words: frozenset[str] | None = None) -> Table:
    """A table by name.

    Args:
        run: The run.
        name: One of :data:`TABLES`.
        words: The words of a query; statistics that it does not name are left out. None for all.

    Raises:
        UnknownNameError: There is no such table.
    """
    if name not in TABLES:
        known = ", ".join(TABLES)
        raise UnknownNameError(f"there is no table {name!r}{suggest(name, list(TABLES))}; tables are {known}")
    if name == "statistics":
        fields = None if words is None else tuple(field for field in FIELDS if field in words)
        query = StatisticsQuery(Selection(), Mode.GLOBAL, None, "all", fields=fields)
        return Table(name, lambda: reading_again(run, lambda: query.read(query.team(run))))
    if name == "findings":
        return Table(name, lambda: _findings(run))
    read = _READERS[name]
    return Table(name, lambda: _table(name, [row for who in run.workers for row in read(run.worker(who))]))


def tables_for(run: Run, query: str) -> dict[str, Callable[[], pyarrow.Table]]:
    """All tables by name, for a query; of statistics only the columns that it names."""
    named = fields_named(query)
    return {name: partial(_arrow, run, name, named) for name in TABLES}


def _arrow(run: Run, name: str, words: frozenset[str] | None) -> pyarrow.Table:
    return table_of(run, name, words).to_arrow()


def fields_named(query: str) -> frozenset[str] | None:
    """The words of a query, if they name all columns that it can give; None where it may give columns unnamed."""
    text = re.sub(r"count\s*\(\s*\*\s*\)", "", query.lower())
    words = re.findall(r"\w+", text)
    # SELECT *, COLUMNS(...), FROM first, SUMMARIZE, and the like.
    hidden = {"columns", "summarize", "describe", "natural", "pivot", "unpivot", "table", "show"}
    if "*" in text or hidden & set(words) or words.count("select") < words.count("from"):
        return None
    return frozenset(words)


def _scalars(worker: Worker) -> Iterator[tuple[Any, ...]]:
    for end, place in worker.course:
        tables = worker.attempts[place.attempt]
        for tensor_id, value, weight in tables.scalars(place.global_step):
            row = tables.catalog.get(tensor_id)
            if row is not None:
                step = (place.attempt, worker.name, end.mode.name, end.mode_step, end.global_step)
                yield (*step, row.name, row.role.value, value, weight)


def _steps(worker: Worker) -> Iterator[tuple[Any, ...]]:
    for end, place in worker.course:
        yield (
            place.attempt, worker.name, end.mode.name, end.mode_step, end.global_step, end.train_step,
            (end.end_ns - end.start_ns) / 1e9, end.captures, end.model,
        )  # fmt: skip


def _tensors(worker: Worker) -> Iterator[tuple[Any, ...]]:
    for row in worker.infos().values():
        yield (
            worker.name, row.name, row.role.value, row.module, row.module_type, row.layer_index, list(row.shape),
            row.dtype, row.trainable, row.placement, list(row.collections), row.model,
        )  # fmt: skip


def _facts(worker: Worker) -> Iterator[tuple[Any, ...]]:
    known = {end.global_step: end for end, _ in worker.course}
    for fact in worker.facts():
        end = known.get(fact.global_step)
        mode, step = (end.mode.name, end.mode_step) if end is not None else (None, None)
        yield worker.name, mode, step, fact.global_step, fact.kind, fact.source, json.dumps(fact.data)


def _findings(run: Run) -> pyarrow.Table:
    rows = [
        (
            each.id, each.rule, each.severity.value, each.attempt, each.worker, each.mode.name, each.step,
            each.last_step, each.count, list(each.tensors), each.value, each.limit, each.message, list(each.causes),
            list(each.what_to_try), json.dumps(each.evidence, default=number_to_json),
        )
        for each in run.journal.findings
    ]  # fmt: skip
    return _table("findings", rows)


def _table(name: str, rows: list[tuple[Any, ...]]) -> pyarrow.Table:
    import pyarrow as pa

    kinds = {
        "i": pa.int64(), "s": pa.string(), "f": pa.float64(), "b": pa.bool_(), "I": pa.list_(pa.int64()),
        "S": pa.list_(pa.string()),
    }  # fmt: skip
    described = [column.rpartition(":") for column in _COLUMNS[name].split()]
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in described]
    found: dict[str, Any] = {}
    for (column, _, kind), values in zip(described, columns, strict=True):
        if kind == "d":
            found[column] = pa.array(values, pa.string()).dictionary_encode()
        elif kind == "f" and None not in values:
            found[column] = pa.array(np.array(values, np.float64))
        else:
            try:
                found[column] = pa.array(values, kinds[kind])
            except (OverflowError, pa.ArrowInvalid) as error:
                raise DamagedDataError(f"the column {column!r} of {name} has a number that is out of range") from error
    return pa.table(found)


#: Columns: name and kind (integer, string, float, boolean, dictionary of strings; capitals are lists).
_COLUMNS = {
    "scalars": "attempt:i worker:d mode:d step:i global_step:i name:d role:d value:f weight:f",
    "steps": "attempt:i worker:d mode:d step:i global_step:i train_step:i seconds:f captures:i model:i",
    "tensors": "worker:d tensor:s role:d module:d module_type:d layer_index:i shape:I dtype:d trainable:b placement:d "
    "collections:S model:i",
    "facts": "worker:d mode:d step:i global_step:i kind:d source:d data:s",
    "findings": "id:s rule:d severity:d attempt:i worker:d mode:d step:i last_step:i count:i tensors:S value:f limit:f "
    "message:s causes:S try:S evidence:s",
}
_READERS: dict[str, Callable[[Worker], Iterator[tuple[Any, ...]]]] = {
    "scalars": _scalars, "steps": _steps, "tensors": _tensors, "facts": _facts,
}  # fmt: skip
#: Names of all tables.
TABLES = ("statistics", *_COLUMNS)
