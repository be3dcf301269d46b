"""From finished steps to frames: fills columns, averages scalars, hands raw tensors to the store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, StoreError
from watchglass.record.merging import reductions_of, resolved, statistics_of, units_of
from watchglass.record.open_steps import CapturedRecords, OpenStep, SteadyRow
from watchglass.records import (
    LOADER_WORKERS,
    PAUSES,
    PHASES,
    REDUCTIONS,
    SCALARS,
    STATISTIC_FIELDS,
    STEPS,
    UNITS,
    Fact,
    Failure,
    Mode,
    StepPhase,
    TensorInfo,
)
from watchglass.store import (
    ABSENT_BITS,
    RawTensor,
    StatisticsBatch,
    dtype_of,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    encode_raw_index,
    encode_rows,
    encode_statistics,
    is_storable,
    table_of,
)

#: Approximate bytes of a row of statistics, its histogram and a fact in the queue.
_STATISTICS_BYTES, _HISTOGRAM_BYTES, _FACT_BYTES = 8 * len(STATISTIC_FIELDS), 512, 256
#: Steps between two moments at which other threads may run, see :func:`_yielding_the_lock`.
_STEPS_AT_A_TIME = 16
#: Bytes that a :class:`~watchglass.record.open_steps.SteadyRow` counts in the queue.
STEADY_ROW_BYTES = 128
#: Most rows and bins of one frame: far below what a frame may hold and a reader decodes at once.
_FRAME_ROWS, _FRAME_BINS = 1 << 16, 1 << 22
#: Reason in the fact on a row that no frame can hold.
_TOO_LONG = "it is longer than a frame may be"

_Row = TypeVar("_Row")


def bytes_of_records(records: CapturedRecords) -> int:
    """Approximate bytes of these records in the queue."""
    size = 256 + 32 * len(records.scalars) + _FACT_BYTES * len(records.facts)
    if records.statistics or records.units or records.raw or records.reductions:
        for captured in records.statistics:
            histograms = 0 if captured.histograms is None else _HISTOGRAM_BYTES
            size += len(captured.ids) * (_STATISTICS_BYTES + histograms)
        size += 64 * len(records.units) + sum(int(entry[1].nbytes) for entry in records.raw)
        # Those of tensors on a device are worked out on the host, from the whole tensor.
        size += sum(int(getattr(value, "nbytes", 0)) for _, _, value in records.reductions)
    return size


def encode_steps(
    steps: Sequence[OpenStep | SteadyRow],
    tensors: Sequence[TensorInfo],
    write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]],
    *,
    steady_ids: tuple[int, int] = (0, 0),
) -> list[bytes]:
    """Frames of everything that belongs to ``steps``, in the order in which a reader needs them.

    The steps' ends come after their records, so that a step whose end is readable is whole.

    Args:
        steps: Finished steps, in order.
        tensors: Catalog rows that were added since the last call.
        write_tensors: Writes raw tensors ``(global_step, tensor)`` to a file next to the segment and returns their
            index rows.
        steady_ids: Tensor ids of the loss and the learning rate of a :class:`SteadyRow`.
    """
    steady = _columns([step for step in steps if isinstance(step, tuple)])
    whole = [step for step in steps if not isinstance(step, tuple)]
    frames: list[bytes] = []
    named, unnamed = _list_frames(encode_catalog, tensors)
    frames += named
    statistics = statistics_of(_yielding_the_lock(whole))
    if statistics is not None:
        frames += _statistics_frames(statistics)
    numbers = {
        REDUCTIONS: reductions_of(whole), UNITS: units_of(whole), SCALARS: _scalars(whole, steady, steady_ids),
        PHASES: _phases(whole, steady), PAUSES: _pauses(whole), LOADER_WORKERS: _loads(whole),
    }  # fmt: skip
    for kind, rows in numbers.items():
        # A row alone always fits: no layer has 67 million units.
        frames += _list_frames(partial(encode_rows, kind), rows)[0]
    raw, lost = _write_raw(whole, write_tensors)
    facts = [fact for step in whole if step.records.facts for fact in step.facts()] + lost
    facts += [
        Fact("dropped", -1, "recorder", {"tensors": 1, "tensor_id": t.tensor_id, "reason": _TOO_LONG}) for t in unnamed
    ]
    encoded, too_long = _list_frames(encode_facts, facts)
    frames += encoded
    if too_long:
        dropped = [
            Fact("dropped", f.global_step, "recorder", {"facts": 1, "kind": f.kind[:99], "reason": _TOO_LONG})
            for f in too_long
        ]
        frames.append(encode_facts(dropped))
    frames += _list_frames(encode_raw_index, raw)[0]
    if steps:
        frames.append(encode_rows(STEPS, _ends(steps, whole, steady, statistics)))
    return frames


def encode_singly(
    steps: Sequence[OpenStep | SteadyRow],
    tensors: Sequence[TensorInfo],
    write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]],
    *,
    steady_ids: tuple[int, int],
) -> tuple[list[bytes], int]:
    """Encode each step separately, after :func:`encode_steps` failed; returns the frames and how many steps failed."""
    frames: list[bytes] = []
    lost = 0
    for some, names in (*(((), [tensor]) for tensor in tensors), *(([step], ()) for step in steps)):
        try:
            frames += encode_steps(some, names, write_tensors, steady_ids=steady_ids)
        except Exception:
            lost += len(some)
    return frames, lost


def _list_frames(encode: Callable[[Any], bytes], rows: Sequence[_Row] | NDArray[Any]) -> tuple[list[bytes], list[_Row]]:
    """Frames of all rows, as few as hold them, and the rows that no frame can hold."""
    if not len(rows):
        return [], []
    try:
        return [encode(rows)], []
    except InvalidValueError:  # more than a reader takes at once
        if len(rows) == 1:
            return [], list(rows)
    half = len(rows) // 2
    (first, without), (second, others) = _list_frames(encode, rows[:half]), _list_frames(encode, rows[half:])
    return first + second, without + others


def encode_ending(status: str, counters: dict[str, Any], failure: Failure | None) -> bytes:
    """The last frame of a worker: its status, its failure if any, and the cost of capture."""
    why = {} if failure is None else {"failure": failure.to_json()}
    clocks = {"time_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    return encode_lifecycle({"event": "left", "status": status, **why, "counters": counters, **clocks})


def _yielding_the_lock(steps: Sequence[OpenStep]) -> Iterable[OpenStep]:
    """The steps; every few of them, other threads get the interpreter lock.

    The interpreter takes the lock from a running thread only after 5 ms. A training step may be shorter than that.
    """
    for number, step in enumerate(steps):
        if number % _STEPS_AT_A_TIME == 0:
            time.sleep(0)
        yield step


def _columns(rows: Sequence[tuple[Any, ...]]) -> dict[str, NDArray[Any]]:
    """Steady rows by column; empty where there are none."""
    if not rows:
        return {}
    columns = dict(zip(SteadyRow._fields, zip(*rows, strict=True), strict=True))
    columns["loss"] = tuple([loss if type(loss) is float else float(resolved(loss)) for loss in columns["loss"]])
    floats = ("loss", "learning_rate", "weight")
    return {name: np.array(column, "f8" if name in floats else "i8") for name, column in columns.items()}


def _statistics_frames(batch: StatisticsBatch) -> list[bytes]:
    """Frames of all rows, none too large for a reader to decode at once."""
    bins = len(batch.histograms.keys) if batch.histograms is not None else 0
    if len(batch) > 1 and (len(batch) > _FRAME_ROWS or bins > _FRAME_BINS):
        rows = np.arange(len(batch))
        return [frame for half in np.array_split(rows, 2) for frame in _statistics_frames(batch.take(half))]
    return [encode_statistics(batch)]


def _scalars(steps: Sequence[OpenStep], steady: dict[str, NDArray[Any]], steady_ids: tuple[int, int]) -> NDArray[Any]:
    """Rows of scalars, by step where there are steady rows among them."""
    rows = [row for step in _yielding_the_lock(steps) for row in _scalars_of(step)]
    known = table_of(SCALARS, rows)
    if not steady:
        return known
    found = np.zeros((len(steady["loss"]), 2), dtype_of(SCALARS))
    found["global_step"] = steady["global_step"][:, None]
    found["tensor_id"] = steady_ids
    found["weight"] = 1.0
    found["weight"][:, 0] = steady["weight"]
    found["value"] = np.stack([steady["loss"], steady["learning_rate"]], axis=1)
    found = found[np.ascontiguousarray(found["value"]).view("u8") != ABSENT_BITS]
    both = np.concatenate([known, found])
    return both[np.argsort(both["global_step"], kind="stable")]


def _scalars_of(step: OpenStep) -> Iterable[tuple[int, int, float, float]]:
    """Rows of scalars of a step, one for each tensor: several values are averaged by weight."""
    scalars = step.records.scalars
    if len({row[0] for row in scalars}) == len(scalars):
        return [
            (step.global_step, tensor_id, weight, value if type(value) is float else float(resolved(value)))
            for tensor_id, weight, value in scalars
        ]
    sums: dict[int, tuple[float, float]] = {}
    for tensor_id, weight, value in scalars:
        number = value if type(value) is float else float(resolved(value))
        if tensor_id not in sums:
            sums[tensor_id] = (weight, number)
            continue
        total, mean = sums[tensor_id]
        both = total + weight
        sums[tensor_id] = (both, (total * mean + weight * number) / both if both else number)
    return [(step.global_step, tensor_id, weight, value) for tensor_id, (weight, value) in sums.items()]


def _phases(steps: Sequence[OpenStep], steady: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Rows of the phases of steps, by step; none where they are not recorded."""
    rows = [
        (step.global_step, *(sum(each) / 1e9 for each in zip(*step.records.phases, strict=True)))
        for step in steps
        if step.records.phases
    ]
    known = table_of(PHASES, rows)
    if not steady:
        return known
    found = np.zeros(len(steady["loss"]), dtype_of(PHASES))
    found["global_step"] = steady["global_step"]
    for phase in StepPhase:
        name = phase.name.lower()
        found[f"{name}_s"] = steady[f"{name}_ns"] / 1e9
    recorded = np.any([found[field.name] > 0 for field in PHASES.own], axis=0)
    both = np.concatenate([known, found[recorded]])
    return both[np.argsort(both["global_step"], kind="stable")]


def _pauses(steps: Sequence[OpenStep]) -> NDArray[Any]:
    """Rows of the pauses of steps, one for each kind of pause in a step."""
    rows = []
    for step in steps:
        for pause in sorted({pause for pause, _ in step.records.pauses}):
            spent_ns = [each_ns for each, each_ns in step.records.pauses if each == pause]
            rows.append((step.global_step, pause, len(spent_ns), sum(spent_ns) / 1e9))
    return table_of(PAUSES, rows)


def _loads(steps: Sequence[OpenStep]) -> NDArray[Any]:
    """Rows of the batches of data loaders, one for each loader and process in a step."""
    rows = []
    for step in steps:
        makers = sorted({load[:2] for load in step.records.loads})
        for maker in makers:
            batches, fetch, *rest = zip(*(load[2:] for load in step.records.loads if load[:2] == maker), strict=True)
            fetch_s = sum(fetch) / 1e9 if min(fetch) >= 0 else math.nan
            rows.append((step.global_step, *maker, sum(batches), fetch_s, *(sum(each) / 1e9 for each in rest)))
    return table_of(LOADER_WORKERS, rows)


def _ends(
    steps: Sequence[OpenStep | SteadyRow],
    whole: Sequence[OpenStep],
    steady: dict[str, NDArray[Any]],
    statistics: StatisticsBatch | None,
) -> NDArray[Any]:
    """Rows of ended steps in the order of ``steps``."""
    captures: dict[int, int] = {}
    if statistics is not None:
        numbers, counts = np.unique(statistics.global_step, return_counts=True)
        captures = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    rows = [
        (
            step.global_step, step.mode_step, step.train_step, step.start_ns, max(step.end_ns, step.start_ns),
            captures.get(step.global_step, 0), int(step.mode), step.model,
        )
        for step in _yielding_the_lock(whole)
    ]  # fmt: skip
    if not steady:
        return table_of(STEPS, rows)
    found = np.zeros(len(steady["loss"]), dtype_of(STEPS))
    for name in ("global_step", "mode_step", "start_ns"):
        found[name] = steady[name]
    found["train_step"] = steady["mode_step"]
    found["end_ns"] = np.maximum(steady["end_ns"], steady["start_ns"])
    found["mode"] = Mode.TRAIN
    table = np.empty(len(steps), dtype_of(STEPS))
    is_steady = np.fromiter((isinstance(step, tuple) for step in steps), bool, len(steps))
    table[is_steady], table[~is_steady] = found, table_of(STEPS, rows)
    return table


def _write_raw(
    steps: Sequence[OpenStep], write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]]
) -> tuple[list[dict[str, Any]], list[Fact]]:
    """Index rows of the raw tensors, and facts about those that could not be written: raw tensors are lost first."""
    tensors = [
        (step.global_step, RawTensor(tensor_id, resolved(array), *dtype))
        for step in steps
        for tensor_id, array, *dtype in step.records.raw
    ]
    fitting = [entry for entry in tensors if is_storable(entry[1])]
    lost = [
        Fact("dropped", step, "recorder", {"raw": 1, "tensor_id": raw.tensor_id, "reason": f"dtype {raw.array.dtype}"})
        for step, raw in tensors
        if not is_storable(raw)
    ]
    if not fitting:
        return [], lost
    try:
        return write_tensors(fitting), lost
    except StoreError as error:
        return [], [*lost, Fact("dropped", fitting[0][0], "recorder", {"raw": len(fitting), "reason": str(error)})]
