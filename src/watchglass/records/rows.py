"""The kinds of rows in a run, each declared once. A new kind is a declaration here and an entry of :data:`ROW_KINDS`.

The recorder, the flight recorder, encoding, the tables of a worker, views and needs of rules, ``run.sql``, export,
compaction, the builder of test runs and the tables of docs/run-format.md follow from it. Rows keyed by step belong to a
step of a worker and are written before its end. Rows keyed by time delay no step, and may come before all steps.

Three kinds are more than rows, and the tables of a worker name them: STEPS end the steps that the others belong to,
TENSORS say what their tensor ids mean, and STATISTICS come in batches of columns, which are read when they are needed.
Of most steps the recorder gets only a loss, a rate and times: one row of numbers for all their kinds (steady_rows.py).
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from operator import add
from typing import Any

from watchglass.errors import InvalidValueError
from watchglass.records.training import (
    COUNT_FIELDS,
    STATISTIC_FIELDS,
    Loader,
    Mode,
    ModuleKind,
    Origin,
    Pause,
    Reduction,
    StepPhase,
    UnitKind,
)

#: Types of fields of fixed size, in bytes.
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8, "f32": 4, "f64": 8, "bool": 1}

_Values = type[IntEnum]


class RowKey(Enum):
    """The key of a kind of rows: a step, a time, or none."""

    STEP = "global_step"
    TIME = "time_ns"
    RUN = ""


class GivenUp(IntEnum):
    """The order in which rows are dropped if space runs out, lowest first. Dropped rows are counted by these names.

    Only captured steps have RAW and STATISTICS. The flight recorder keeps no RAW, and of a large step no STATISTICS.
    """

    RAW = 0
    STATISTICS = 1
    SCALARS = 2
    FACTS = 3
    STEPS = 4
    NEVER = 5


class Encoding(Enum):
    """How rows of a kind are written: as fixed-size rows, compressed columns, statistics, or JSON."""

    ROWS = "rows"
    COLUMNS = "columns"
    STATISTICS = "Arrow IPC stream"
    JSON = "JSON"


@dataclass(frozen=True)
class Field:
    """One field of a kind of rows.

    Attributes:
        name: Its name, and that of its column.
        type: One of :data:`SIZES`, ``"text"``, or ``"json"`` (plain JSON values; of a kind written as JSON).
        means: Its meaning, in one line.
        unit: Of its numbers, "" for none.
        array: Whether it is a list of the type, of any length. Lists of texts need a kind that is written as JSON.
        values: The names of its numbers. Tables omit rows with other numbers, which come from a later release.
    """

    name: str
    type: str
    means: str = ""
    unit: str = ""
    array: bool = False
    values: _Values | None = None


#: A row as it is recorded: the values of a kind's own fields.
Row = tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class RowKind:
    """A kind of rows.

    Of rows that are recorded of a step, the last value may come late: it has a method ``resolve``, which waits for it.

    Attributes:
        name: Name of its table.
        number: Kind of the frames that it is written in; never used for another one.
        own: Its fields in addition to the key; ``tensor_id`` is shown as name and role of the tensor.
        key: Whether its rows belong to a step, a time or the run.
        unique: Of several rows with the same key and the same values of these fields, the last one counts; None if all
            rows count.
        given_up: When its rows are dropped if space runs out, and the name under which they are counted.
        special: Its encoding, if it does not follow from the fields.
        joined: One row of two that were recorded of a step, with equal fields of ``unique``, which come first; None if
            they stay two.
        of_run: Whether there are also rows of the run as a whole, with -1 for the step.
        in_files: Whether tensors are recorded, which are written to a file; the rows say where.
        shown_by: The method of a view that shows such rows to rules in another form than ``view.rows`` does, or "".
        called: What it shows, in a reason of a rule that needs such rows; its name if "".
        cure: The same: how to get such rows, or "".

    Raises:
        InvalidValueError: The encoding cannot hold the texts or JSON values of a field.
    """

    name: str
    number: int
    own: tuple[Field, ...]
    key: RowKey = RowKey.STEP
    unique: tuple[str, ...] | None = None
    given_up: GivenUp = GivenUp.STATISTICS
    special: Encoding | None = None
    joined: Callable[[Row, Row], Row] | None = None
    of_run: bool = False
    in_files: bool = False
    shown_by: str = ""
    called: str = ""
    cure: str = ""

    def __post_init__(self) -> None:
        for field in self.own if self.encoding is not Encoding.JSON else ():
            if field.type == "json" or (field.array and field.type not in SIZES):
                raise InvalidValueError(
                    f"rows that are not written as JSON hold no lists of texts and no JSON values but {self.name!r} "
                    f"has {field}; declare a plain text field, with a row for each text or with JSON as its text"
                )

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The key, then its own fields."""
        keys = {
            RowKey.STEP: (Field("global_step", "i64" if self.of_run else "u64", "the worker's step"),),
            RowKey.TIME: (Field("time_ns", "u64", "monotonic clock of the writer", "ns"),),
            RowKey.RUN: (),
        }  # fmt: skip
        return (*keys[self.key], *self.own)

    @cached_property
    def encoding(self) -> Encoding:
        """Rows of fixed size if all fields have a fixed size and the key is the step; else columns."""
        fixed = self.key is RowKey.STEP and all(field.type in SIZES and not field.array for field in self.own)
        return self.special or (Encoding.ROWS if fixed else Encoding.COLUMNS)

    @cached_property
    def of_tensors(self) -> bool:
        """Whether its rows are about tensors."""
        return any(field is _TENSOR for field in self.own)

    @cached_property
    def of_steps(self) -> bool:
        """Whether its rows are about a step as a whole, such as its time: of several models its leader has them."""
        return self.key is RowKey.STEP and not self.of_tensors and not self.shown_by

    @cached_property
    def shown(self) -> type[tuple[Any, ...]]:
        """The named tuple of a row in tables and views: its own fields, with ``tensor`` in place of ``tensor_id``."""
        return namedtuple(self.name, ["tensor" if field is _TENSOR else field.name for field in self.own])

    def __repr__(self) -> str:
        return f"RowKind({self.name!r}, {self.number})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ROW_KINDS.__getitem__, (self.number,)


@dataclass(frozen=True)
class RowsHaving:
    """Rows of a kind, about tensors, that have one value in one field."""

    kind: RowKind  #: The kind.
    field: str  #: The field.
    value: Any  #: The value.
    called: str  #: What they show, in a reason of a rule that needs them.
    collection: str = ""  #: The built-in collection whose tensors have such rows, "" if there is none.
    #: The only kind of module whose outputs have them; None if there are several.
    module_kind: ModuleKind | None = None


_TENSOR = Field("tensor_id", "u32", "see CATALOG")


def _averaged(first: Row, second: Row) -> Row:
    """Of a tensor, two weights and values: their mean by weight."""
    (tensor_id, weight, value), (_, more, other) = first, second
    total = weight + more
    return tensor_id, total, (weight * value + more * other) / total if total else other


def _combined(first: Row, second: Row) -> Row:
    """Of two calls, products multiply and minima take the least. A median cannot be had from medians: the first."""
    (tensor_id, which, value), other = first, second[-1]
    if math.isnan(value) or math.isnan(other):  # one of them had no finite element
        return second if math.isnan(value) else first
    if which == Reduction.PROD:
        return tensor_id, which, value * other
    return (tensor_id, which, min(value, other)) if which == Reduction.ABS_MIN else first


def _in_both(first: Row, second: Row) -> Row:
    """A unit is inactive in a step only if it is so in every call of it."""
    return (*second[:-1], first[-1] & second[-1]) if len(first[-1]) == len(second[-1]) else second


def _added(keys: int) -> Callable[[Row, Row], Row]:
    """Adds up all values behind the first ones."""
    return lambda first, second: (*first[:keys], *map(add, first[keys:], second[keys:]))


STEPS = RowKind(
    "steps", 7, (
        Field("mode_step", "u64", "counts the steps of its mode"),
        Field("train_step", "i64", "the mode step of TRAIN, else of the last TRAIN step begun before, -1 for none"),
        Field("start_ns", "u64", "when it began, by the worker's monotonic clock", "ns"),
        Field("end_ns", "u64", "when it ended", "ns"),
        Field("captures", "u32", "rows of statistics"),
        Field("mode", "u16", "TRAIN 1, EVAL 2, PREDICT 3", values=Mode),
        Field("model", "u16", "number of the model that it trained or evaluated"),
    ), unique=(), given_up=GivenUp.STEPS,
)  # fmt: skip
TENSORS = RowKind(
    "tensors", 2, (
        _TENSOR, Field("name", "text"), Field("role", "text"), Field("module", "text"), Field("module_type", "text"),
        Field("module_kind", "text"), Field("layer_index", "i64"), Field("shape", "i64", array=True),
        Field("dtype", "text"), Field("unit_axis", "i64"), Field("trainable", "bool"), Field("placement", "text"),
        Field("collections", "text", array=True), Field("model", "i64"),
    ), RowKey.RUN, special=Encoding.JSON, given_up=GivenUp.NEVER,
)  # fmt: skip
SCALARS = RowKind(
    "scalars", 3, (
        _TENSOR, Field("weight", "f32", "batch size, 0 where unknown: means over an evaluation weigh with it"),
        Field("value", "f64", "the number"),
    ), unique=("tensor_id",), given_up=GivenUp.SCALARS, joined=_averaged,
)  # fmt: skip
_STATISTICS = {
    "count": "elements", "nan": "of these, not a number", "posinf": "of these, +inf", "neginf": "of these, -inf",
    "zero": "of these, zero", "min": "least finite element; NaN where there is none", "max": "greatest finite element",
    "sum": "of the finite elements", "abs_sum": "of the absolutes of the finite elements",
    "m2": "sum of squared deviations of the finite elements from their mean",
    "l2": "Euclidean norm of the finite elements",
}  # fmt: skip
STATISTICS = RowKind(
    "statistics", 4, (
        _TENSOR, Field("calls", "u32", "tensors (calls, micro-batches) that were merged into the row"),
        Field("origin", "u8", "0 planned, 1 because of a finding: never shown to a rule", values=Origin),
        Field("sampled", "bool", "of a fixed sample of the elements"),
        *(Field(name, "u64" if name in COUNT_FIELDS else "f64", _STATISTICS[name]) for name in STATISTIC_FIELDS),
    ), unique=("tensor_id", "origin"), special=Encoding.STATISTICS, shown_by="statistics",
)  # fmt: skip
REDUCTIONS = RowKind(
    "reductions", 10, (
        _TENSOR, Field("reduction", "u32", "median 1, product 2, median of absolutes 3, least absolute 4",
                       values=Reduction),
        Field("value", "f64", "of the finite elements; NaN where there is none"),
    ), unique=("tensor_id", "reduction"), joined=_combined,
)  # fmt: skip
UNITS = RowKind(
    "units", 5, (
        _TENSOR, Field(
            "kind", "u8", "INACTIVE 1: the unit was zero on every element of the step; SATURATED 2: of the inputs of "
            "tanh or sigmoid, 99 % of its elements were beyond the limits; UNUSED 3: an expert got less than a "
            "hundredth of a fair share", values=UnitKind,
        ),
        Field("flags", "bool", "one for each unit", array=True),
    ), unique=("tensor_id", "kind"), joined=_in_both,
)  # fmt: skip
INACTIVE_UNITS = RowsHaving(
    UNITS, "kind", UnitKind.INACTIVE, "inactive units", "relu_output", ModuleKind.RECTIFIER
)  # fmt: skip
SATURATED_UNITS = RowsHaving(UNITS, "kind", UnitKind.SATURATED, "saturated units", "", ModuleKind.SATURATING)
UNUSED_UNITS = RowsHaving(UNITS, "kind", UnitKind.UNUSED, "unused experts")
RAW = RowKind(
    "raw", 9, (_TENSOR, Field("file", "text", "path below the run"), Field("key", "text", "name within that file")),
    unique=("tensor_id",), given_up=GivenUp.RAW, special=Encoding.JSON, in_files=True,
)  # fmt: skip
FACTS = RowKind(
    "facts", 6, (
        Field("kind", "text", "what was observed"), Field("source", "text", "what observed it"),
        Field("data", "json", "an object"),
    ), given_up=GivenUp.FACTS, special=Encoding.JSON, of_run=True, shown_by="facts",
)  # fmt: skip
_PHASES = {
    StepPhase.DATA: "waits for a data loader",
    StepPhase.PREPARE: "from the arrival of a batch to the call of the model",
    StepPhase.COPY: "copies of tensors to a device, in any other phase, of which they are no part",
    StepPhase.FORWARD: "from the call of the model to the backward; in an evaluation the call",
    StepPhase.BACKWARD: "the backward",
    StepPhase.UPDATE: "from the end of the backward to the end of the optimizer's step",
    StepPhase.COMPUTE: "the call of a compiled step: its forward, backward and update together",
    StepPhase.OTHER: "the rest, since the end of the step before",
}
PHASES = RowKind(
    "phases", 15, tuple(Field(f"{phase.name.lower()}_s", "f32", means, "s") for phase, means in _PHASES.items()),
    unique=(), given_up=GivenUp.SCALARS, joined=_added(0), called="the phases of steps",
    cure="; PyTorch scripts record them under watchglass run, or with watch(model, profiler=True)",
)  # fmt: skip
PAUSES = RowKind(
    "pauses", 19, (
        Field("pause", "u16", "garbage collection 1, torch.save 2, torch.profiler 3", values=Pause),
        Field("count", "u32", "how many of them took a millisecond or more"),
        Field("seconds", "f32", "their time, which is a part of that of the phases", "s"),
    ), unique=("pause",), given_up=GivenUp.SCALARS, joined=_added(1),
)  # fmt: skip
LOADER_WORKERS = RowKind(
    "loader_workers", 20, (
        Field("loader", "u16", "1 for the first loader that the script reads, 2 for the next; 9 for all further ones",
              values=Loader),
        Field("loader_worker", "i64", "the number of its worker process; -1 for batches that are made in this process"),
        Field("batches", "u32", "batches that the script took since the row before; the times are their sums"),
        Field("fetch_s", "f32", "getting the samples from the data set; NaN where that is unknown", "s"),
        Field("collate_s", "f32", "collate_fn", "s"),
        Field("queued_s", "f32", "from then until the script had the batch", "s"),
        Field("transfer_s", "f32", "the part of it in which the script waited for the batch", "s"),
    ), unique=("loader", "loader_worker"), given_up=GivenUp.SCALARS, joined=_added(2),
)  # fmt: skip
SAMPLES = RowKind(
    "samples", 13, (
        Field("layout", "text", "JSON: a list for each metric: name, unit and, of several values, their instances"),
        Field("values", "f32", "of all metrics in the order of the layout; NaN: not read at this time", array=True),
    ), RowKey.TIME,
)  # fmt: skip
NOTES = RowKind(
    "notes", 14, (
        Field("source", "text", "what the note is about: a source of metrics, or the sampler"),
        Field("event", "text", "unavailable, failed, returned, slower, restarted, clock"),
        Field("message", "text", "a sentence"),
    ), RowKey.TIME,
)  # fmt: skip
FINDINGS = RowKind(
    "findings", 16, (
        Field("id", "text"), Field("rule", "text"), Field("severity", "text"), Field("attempt", "i64"),
        Field("worker", "text"), Field("mode", "text"), Field("step", "i64"), Field("last_step", "i64"),
        Field("count", "i64"), Field("global_step", "i64"), Field("model", "i64"),
        Field("tensors", "text", array=True), Field("value", "f64"), Field("limit", "f64"), Field("message", "text"),
        Field("causes", "text", array=True), Field("try", "text", array=True), Field("evidence", "json"),
    ), RowKey.RUN, special=Encoding.JSON, given_up=GivenUp.NEVER,
)  # fmt: skip

#: All kinds by number, in the order in which tables are named.
ROW_KINDS: dict[int, RowKind] = {
    kind.number: kind
    for kind in (STEPS, TENSORS, SCALARS, STATISTICS, REDUCTIONS, UNITS, RAW, FACTS, PHASES, PAUSES, LOADER_WORKERS,
                 SAMPLES, NOTES, FINDINGS)
}  # fmt: skip


def of_steps() -> list[RowKind]:
    """Kinds whose rows come before the ends of the steps that they belong to."""
    return [kind for kind in ROW_KINDS.values() if kind.key is RowKey.STEP and kind is not STEPS]
