"""Merges the rows of one tensor at one step (calls of a module, micro-batches) into one row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.record.open_steps import Captured, OpenStep
from watchglass.records import REDUCTIONS, STATISTIC_FIELDS, UNITS, Origin, Reduction
from watchglass.stats import Histograms, merge, merge_histograms
from watchglass.store import StatisticsBatch, table_of

_WIDTH = len(STATISTIC_FIELDS)


def resolved(value: Any) -> Any:
    """The numbers themselves; waits for those that a device has not delivered yet."""
    return value.resolve() if hasattr(value, "resolve") else value


def joined(captured: Sequence[Captured]) -> list[Captured]:
    """The same rows in the same order as few entries, which cost less than many at every later turn.

    Args:
        captured: What a step captured, delivered by the device.
    """
    if len(captured) < 2:
        return list(captured)
    found: list[Captured] = []
    for (sampled, binned), group in groupby(captured, lambda each: (each.sampled, each.histograms is not None)):
        entries = list(group)
        found.append(
            Captured(
                list(chain.from_iterable(each.ids for each in entries)),
                np.concatenate([np.reshape(each.values, (-1, _WIDTH)) for each in entries]),
                sampled,
                Histograms.concatenate([each.histograms for each in entries]) if binned else None,
            )
        )
    return found


def statistics_of(steps: Iterable[OpenStep]) -> StatisticsBatch | None:
    """Statistics of all steps, the rows of a step together and one per tensor; None where nothing was captured."""
    entries = [(step.global_step, captured) for step in steps for captured in step.records.statistics]
    if not entries:
        return None
    sizes = [len(captured.ids) for _, captured in entries]
    total = sum(sizes)
    histograms = None
    if any(captured.histograms is not None for _, captured in entries):
        histograms = Histograms.concatenate([_histograms(captured) for _, captured in entries])
    batch = StatisticsBatch(
        global_step=np.repeat(np.array([step for step, _ in entries], np.uint64), sizes),
        tensor_id=np.fromiter(chain.from_iterable(captured.ids for _, captured in entries), np.uint32, total),
        calls=np.ones(total, np.uint32),
        values=np.concatenate([np.reshape(resolved(captured.values), (-1, _WIDTH)) for _, captured in entries]),
        origin=np.full(total, Origin.PLANNED, np.uint8),
        sampled=np.repeat(np.array([captured.sampled for _, captured in entries], bool), sizes),
        histograms=histograms,
    )
    return _merged(batch)


def _histograms(captured: Captured) -> Histograms:
    found: Histograms | None = resolved(captured.histograms)
    return found if found is not None else Histograms.none(len(captured.ids))


def _merged(batch: StatisticsBatch) -> StatisticsBatch:
    """One row for each step and tensor, the values of several merged in their order."""
    _, step = np.unique(batch.global_step, return_inverse=True)
    keys = step.astype(np.uint64) << np.uint64(32) | batch.tensor_id
    unique, first, place, calls = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    if len(unique) == len(batch):
        return batch
    merged = batch.take(first)
    merged.calls = calls.astype(np.uint32)
    merged.sampled = np.bincount(place, batch.sampled) > 0
    # The second rows of all tensors first, then the third: few large merges instead of many small ones.
    order = np.argsort(place, kind="stable")
    turn = np.arange(len(batch)) - np.repeat(np.cumsum(calls) - calls, calls)
    for number in range(1, int(calls.max())):
        rows = order[turn == number]
        merged.values[place[rows]] = merge(merged.values[place[rows]], batch.values[rows])
    if batch.histograms is not None:
        merged.histograms = _merged_histograms(batch.histograms, len(unique), place, order, turn)
    return merged


def _merged_histograms(
    histograms: Histograms, n: int, place: NDArray[Any], order: NDArray[Any], turn: NDArray[Any]
) -> Histograms:
    padded = Histograms.concatenate([histograms, Histograms.none(1)])
    parts: list[Histograms] = []
    for number in range(int(turn.max()) + 1):
        rows = order[turn == number]
        chosen = np.full(n, len(histograms))
        chosen[place[rows]] = rows
        parts.append(padded.take(chosen))
    while len(parts) > 1:
        # In pairs, since every merge sorts both sides.
        pairs = [merge_histograms(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) & ~1 :]
    return parts[0]


def reductions_of(steps: Iterable[OpenStep]) -> NDArray[Any]:
    """Rows of reductions, one for each step, tensor and reduction.

    Of several calls, products multiply and minima take the least; a median cannot be had from medians, so it is that
    of the first call.
    """
    rows: dict[tuple[int, int, int], float] = {}
    for step in steps:
        for tensor_id, reduction, value in step.records.reductions:
            key = (step.global_step, tensor_id, int(reduction))
            number = float(resolved(value))
            rows[key] = _combined(reduction, rows[key], number) if key in rows else number
    return table_of(REDUCTIONS, [(*key, value) for key, value in rows.items()])


def _combined(reduction: Reduction, first: float, second: float) -> float:
    if math.isnan(first) or math.isnan(second):  # one of them had no finite element
        return second if math.isnan(first) else first
    if reduction is Reduction.PROD:
        return first * second
    return min(first, second) if reduction is Reduction.ABS_MIN else first


def units_of(steps: Iterable[OpenStep]) -> NDArray[Any]:
    """Rows of units of all steps, one for each step, tensor and kind."""
    rows: dict[tuple[int, int, int], NDArray[np.bool_]] = {}
    for step in steps:
        for tensor_id, kind, value in step.records.units:
            flags = np.asarray(resolved(value), bool).ravel()
            key = (step.global_step, tensor_id, int(kind))
            # A unit is inactive in a step only if it is so in every call of it.
            rows[key] = rows[key] & flags if key in rows and rows[key].size == flags.size else flags
    return table_of(UNITS, [(*key, flags) for key, flags in rows.items()])
