"""From finished steps to frames: averages scalars, merges repeated tensors, fills columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from watchglass.record.steps import OpenStep, StepRecords
from watchglass.records import SCALAR_FIELDS, STATISTIC_FIELDS, STEP_END_FIELDS, Origin, TensorInfo
from watchglass.stats import and_units, merge, pack_units
from watchglass.store import (
    StatisticsBatch,
    UnitsBatch,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    encode_raw_index,
    encode_scalars,
    encode_statistics,
    encode_step_ends,
    encode_units,
)

_WIDTH = len(STATISTIC_FIELDS)
_STEPS_AT_A_TIME = 16


def row_bytes(records: StepRecords) -> int:
    """About how many bytes these records hold while they wait."""
    size = 256 + 32 * len(records.scalars)
    if records.statistics or records.units or records.raw:
        size += sum(len(ids) for ids, _, _ in records.statistics) * 8 * _WIDTH + 64 * len(records.units)
        size += sum(int(array.nbytes) for _, array in records.raw)
    return size


def encode_steps(
    steps: Sequence[OpenStep],
    tensors: Sequence[TensorInfo],
    write_tensors: Callable[[list[tuple[int, int, Any]]], list[dict[str, Any]]],
    ending: tuple[str, dict[str, Any]] | None = None,
) -> list[bytes]:
    """Frames of everything that belongs to ``steps``, in the order in which a reader needs them.

    The steps' ends come after their records, so that a step whose end is readable is whole.

    Args:
        steps: Finished steps.
        tensors: Catalog rows that were added since the last call.
        write_tensors: Writes raw tensors beside the segment and returns their index rows.
        ending: Status and counters of the worker's end, when this is its last call.
    """
    frames: list[bytes] = []
    captured = [step for step in steps if step.records.statistics]
    statistics = [_statistics_of(step) for step in captured]
    captures = {step.global_step: batch[0].size for step, batch in zip(captured, statistics, strict=True)}
    if tensors:
        frames.append(encode_catalog(list(tensors)))
    if captured:
        frames.append(encode_statistics(_batch(captured, statistics)))
    units = _units_of(captured)
    if units is not None:
        frames.append(encode_units(units))
    scalars = [row for step in _without_haste(steps) for row in _scalars_of(step)]
    if scalars:
        frames.append(encode_scalars(_table(scalars, SCALAR_FIELDS)))
    facts = [fact for step in steps if step.records.facts for fact in step.facts()]
    if facts:
        frames.append(encode_facts(facts))
    raw = [(step.global_step, tensor_id, array) for step in steps for tensor_id, array in step.records.raw]
    if raw:
        frames.append(encode_raw_index(write_tensors(raw)))
    if steps:
        rows = [_end_row(step, captures.get(step.global_step, 0)) for step in _without_haste(steps)]
        frames.append(encode_step_ends(_table(rows, STEP_END_FIELDS)))
    if ending is not None:
        status, counters = ending
        frames.append(encode_lifecycle({"event": "left", "status": status, "counters": counters, **_clocks()}))
    return frames


def _clocks() -> dict[str, int]:
    return {"time_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}


def _without_haste(steps: Sequence[OpenStep]) -> Iterable[OpenStep]:
    """The steps, with a moment for other threads every now and then.

    A thread that asks for the interpreter lock gets it within 5 ms, an eternity to a training of 1 ms steps, unless
    the one that holds it lets go by itself.
    """
    for number, step in enumerate(steps):
        if number % _STEPS_AT_A_TIME == 0:
            time.sleep(0)
        yield step


def _table(rows: Sequence[tuple[Any, ...]], fields: tuple[tuple[str, str], ...]) -> Any:
    """Rows as a structured array, column by column: several times faster than row by row."""
    table = np.empty(len(rows), np.dtype(list(fields)))
    for (name, _), column in zip(fields, zip(*rows, strict=True), strict=True):
        table[name] = column
    return table


def _resolved(value: Any) -> Any:
    return value.resolve() if hasattr(value, "resolve") else value


def _scalars_of(step: OpenStep) -> Iterable[tuple[int, int, float, float]]:
    scalars = step.records.scalars
    if len({row[0] for row in scalars}) == len(scalars):
        return [
            (step.global_step, tensor_id, weight, value if type(value) is float else float(_resolved(value)))
            for tensor_id, weight, value in scalars
        ]
    sums: dict[int, tuple[float, float]] = {}
    for tensor_id, weight, value in scalars:
        number = value if type(value) is float else float(_resolved(value))
        if tensor_id not in sums:
            sums[tensor_id] = (weight, number)
            continue
        total, mean = sums[tensor_id]
        both = total + weight
        sums[tensor_id] = (both, (total * mean + weight * number) / both if both else number)
    return [(step.global_step, tensor_id, weight, value) for tensor_id, (weight, value) in sums.items()]


def _statistics_of(step: OpenStep) -> tuple[Any, Any, Any, Any]:
    """Ids, matrix, calls and sampled flags of a captured step, rows of the same tensor merged in order."""
    ids = np.concatenate([np.asarray(ids, np.uint32) for ids, _, _ in step.records.statistics])
    matrix = np.concatenate([np.reshape(_resolved(values), (-1, _WIDTH)) for _, values, _ in step.records.statistics])
    sampled = np.concatenate([np.full(len(ids), sampled) for ids, _, sampled in step.records.statistics])
    unique, first, calls = np.unique(ids, return_index=True, return_counts=True)
    if unique.size == ids.size:
        return ids, matrix, np.ones(ids.size, np.uint32), sampled
    merged = matrix[first].copy()
    place = {int(tensor_id): row for row, tensor_id in enumerate(unique)}
    for row in range(ids.size):
        target = place[int(ids[row])]
        if row != first[target]:
            merged[target] = merge(merged[target], matrix[row])
    return unique, merged, calls.astype(np.uint32), sampled[first]


def _batch(steps: Sequence[OpenStep], parts: Sequence[tuple[Any, Any, Any, Any]]) -> StatisticsBatch:
    ids = np.concatenate([part[0] for part in parts])
    return StatisticsBatch(
        global_step=np.concatenate(
            [np.full(part[0].size, step.global_step, np.uint64) for step, part in zip(steps, parts, strict=True)]
        ),
        tensor_id=ids,
        calls=np.concatenate([part[2] for part in parts]),
        values=np.concatenate([part[1] for part in parts]),
        origin=np.full(ids.size, Origin.PLANNED, np.uint8),
        sampled=np.concatenate([part[3] for part in parts]).astype(bool),
    )


def _units_of(steps: Sequence[OpenStep]) -> UnitsBatch | None:
    rows: list[tuple[int, int, int, int, bytes]] = []
    for step in steps:
        seen: dict[tuple[int, int], tuple[int, bytes]] = {}
        for tensor_id, kind, value in step.records.units:
            flags = np.asarray(_resolved(value), bool)
            packed = pack_units(flags)
            key = (tensor_id, int(kind))
            # A unit is inactive in a step only if it is so in every call of it.
            if key in seen and seen[key][0] == flags.size:
                packed = and_units(seen[key][1], packed)
            seen[key] = (flags.size, packed)
        rows += [(step.global_step, tensor_id, kind, size, bits) for (tensor_id, kind), (size, bits) in seen.items()]
    if not rows:
        return None
    return UnitsBatch(
        global_step=np.array([row[0] for row in rows], np.uint64),
        tensor_id=np.array([row[1] for row in rows], np.uint32),
        kind=np.array([row[2] for row in rows], np.uint8),
        units=np.array([row[3] for row in rows], np.uint32),
        bits=[row[4] for row in rows],
    )


def _end_row(step: OpenStep, captures: int) -> tuple[int, ...]:
    end_ns = max(step.end_ns, step.start_ns)
    return (
        step.global_step, step.mode_step, step.train_step, step.start_ns, end_ns, captures, int(step.mode),
    )  # fmt: skip
