"""Makes one row of all that were recorded with one key at one step: calls of a module, micro-batches, pauses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.record.deferred_facts import data_of
from watchglass.record.open_steps import Captured, OpenStep
from watchglass.records import SIZES, STATISTIC_FIELDS, Encoding, Origin, Row, RowKind
from watchglass.stats import Histograms, merge, merge_histograms
from watchglass.store import RawTensor, StatisticsBatch

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


def settled(kind: RowKind, recorded: Sequence[Any]) -> list[Any]:
    """Rows as they were recorded, with all values; waits for those that come late, and omits rows of None."""
    if kind.encoding is Encoding.STATISTICS:
        return [Captured(e.ids, resolved(e.values), e.sampled, resolved(e.histograms)) for e in recorded]
    last = kind.own[-1]
    if kind.in_files:
        return [RawTensor(each[0], resolved(each[1]), *each[2:]) for each in recorded]
    if last.array:
        dtype = bool if last.type == "bool" else None
        return [(*row[:-1], np.asarray(resolved(row[-1]), dtype).ravel()) for row in recorded]
    if last.type in SIZES:
        numbers = (row if type(row[-1]) is float else _with_number(row) for row in recorded)
        return [row for row in numbers if row is not None]
    rows = [row if type(row[-1]) is dict else (*row[:-1], data_of(row[-1])) for row in recorded]
    return [row for row in rows if row[-1] is not None]


def _with_number(row: Row) -> Row | None:
    if type(row[-1]) is int:
        return row
    number = resolved(row[-1])
    return None if number is None else (*row[:-1], float(number))


def rows_of(steps: Iterable[OpenStep]) -> dict[RowKind, list[Any]]:
    """What was recorded of all steps by kind, each with its step in front; of one key in a step one row."""
    found: dict[RowKind, list[Any]] = {}
    for step in steps:
        for kind, recorded in step.records.rows.items():
            rows = settled(kind, recorded) if recorded else ()
            if kind.encoding is Encoding.STATISTICS or kind.in_files:
                found.setdefault(kind, []).extend([(step.global_step, each) for each in rows])
            elif rows:
                one_each = rows if kind.joined is None or len(rows) == 1 else _joined_rows(kind, rows)
                found.setdefault(kind, []).extend([(step.global_step, *row) for row in one_each])
    return found


def _joined_rows(kind: RowKind, rows: Iterable[Row]) -> Iterable[Row]:
    assert kind.joined is not None
    assert kind.unique is not None
    width, found = len(kind.unique), dict[Row, Row]()
    for row in rows:
        key = row[:width]
        found[key] = kind.joined(found[key], row) if key in found else row
    return found.values()


def statistics_of(entries: Sequence[tuple[int, Captured]]) -> StatisticsBatch:
    """Statistics of all steps, the rows of a step together and one per tensor."""
    sizes = [len(captured.ids) for _, captured in entries]
    total = sum(sizes)
    histograms = None
    if any(captured.histograms is not None for _, captured in entries):
        histograms = Histograms.concatenate([c.histograms or Histograms.none(len(c.ids)) for _, c in entries])
    batch = StatisticsBatch(
        global_step=np.repeat(np.array([step for step, _ in entries], np.uint64), sizes),
        tensor_id=np.fromiter(chain.from_iterable(captured.ids for _, captured in entries), np.uint32, total),
        calls=np.ones(total, np.uint32),
        values=np.concatenate([np.reshape(captured.values, (-1, _WIDTH)) for _, captured in entries]),
        origin=np.full(total, Origin.PLANNED, np.uint8),
        sampled=np.repeat(np.array([captured.sampled for _, captured in entries], bool), sizes),
        histograms=histograms,
    )
    return _merged(batch)


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
