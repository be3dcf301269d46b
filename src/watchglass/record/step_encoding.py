"""From finished steps to frames: fills columns, averages scalars, hands raw tensors to the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, StoreError
from watchglass.record.merging import rows_of, statistics_of
from watchglass.record.open_steps import CapturedRecords, OpenStep
from watchglass.record.steady_rows import SteadyRow, steady_tables
from watchglass.records import (
    STATISTIC_FIELDS,
    STEPS,
    Encoding,
    Fact,
    Failure,
    GivenUp,
    RowKind,
    TensorInfo,
    facts,
    of_steps,
)
from watchglass.store import (
    RawTensor,
    StatisticsBatch,
    dtype_of,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    encode_rows,
    encode_statistics,
    is_storable,
    table_of,
)

#: Approximate bytes in the queue: of a row of statistics, its histogram, another row; of rows that are about as large.
_STATISTICS_BYTES, _HISTOGRAM_BYTES, _ROW_BYTES = 8 * len(STATISTIC_FIELDS), 512, 64
_ROWS_BYTES = {
    kind: 256 if kind.encoding is Encoding.JSON else _ROW_BYTES
    for kind in of_steps()
    if kind.given_up > GivenUp.STATISTICS
}
#: Steps between two moments at which other threads may run, see :func:`_yielding_the_lock`.
_STEPS_AT_A_TIME = 16
#: Most rows and bins of one frame: far below what a frame may hold and a reader decodes at once.
_FRAME_ROWS, _FRAME_BINS = 1 << 16, 1 << 22
#: Reason in the fact on a row that no frame can hold.
_TOO_LONG = "it is longer than a frame may be"


def queued_bytes(records: CapturedRecords) -> tuple[int, int]:
    """Approximate bytes of these records in the queue: of all but tensors for files, and of these."""
    size, for_files = 256, 0
    for kind, rows in records.rows.items():
        each = _ROWS_BYTES.get(kind)
        if each is not None:
            size += each * len(rows)
        elif kind.in_files:
            for_files += sum(int(entry[1].nbytes) for entry in rows)
        elif kind.encoding is Encoding.STATISTICS:
            for captured in rows:
                histograms = 0 if captured.histograms is None else _HISTOGRAM_BYTES
                size += len(captured.ids) * (_STATISTICS_BYTES + histograms)
        else:
            # Those of tensors on a device are worked out on the host, from the whole tensor.
            size += sum(_ROW_BYTES + int(getattr(row[-1], "nbytes", 0)) for row in rows)
    return size, for_files


def encode_steps(
    steps: Sequence[OpenStep | SteadyRow],
    tensors: Sequence[TensorInfo],
    write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]],
    *,
    steady_ids: tuple[int, int] = (0, 0),
    more: Sequence[OpenStep] = (),
) -> list[bytes]:
    """Frames of everything that belongs to ``steps``, in the order in which a reader needs them.

    The steps' ends come after their records, so that a step whose end is readable is whole.

    Args:
        steps: Finished steps, in order.
        tensors: Catalog rows that were added since the last call.
        write_tensors: Writes raw tensors ``(global_step, tensor)`` to a file next to the segment and returns their
            index rows.
        steady_ids: Tensor ids of the loss and the learning rate of a :class:`SteadyRow`.
        more: Further records of steps whose ends are among ``steps``, or were encoded before.
    """
    steady = steady_tables([step for step in steps if isinstance(step, tuple)], steady_ids)
    whole = [step for step in steps if not isinstance(step, tuple)]
    recorded = rows_of(_yielding_the_lock([*whole, *more]))
    frames, unnamed = _list_frames(encode_catalog, tensors)
    lost = [facts.Dropped({"tensors": 1, "tensor_id": t.tensor_id}, _TOO_LONG).to_fact("recorder") for t in unnamed]
    captures: dict[int, int] = {}
    for kind in of_steps():
        rows = recorded.get(kind, [])
        if not rows and kind not in steady:
            continue
        if kind.encoding is Encoding.STATISTICS:
            statistics = statistics_of(rows)
            numbers, counts = np.unique(statistics.global_step, return_counts=True)
            captures = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
            frames += _statistics_frames(statistics)
            continue
        if kind.in_files:
            rows, refused = _write_raw(kind, rows, write_tensors)
            lost += refused
        encoded, too_long = _list_frames(partial(encode_rows, kind), _in_order(table_of(kind, rows), steady.get(kind)))
        frames += encoded
        lost += [_too_long(kind, row) for row in too_long]
    if lost:
        frames.append(encode_facts(lost))
    if steps:
        frames.append(encode_rows(STEPS, _ends(steps, whole, steady.get(STEPS), captures)))
    return frames


def _in_order(rows: NDArray[Any], more: NDArray[Any] | None) -> NDArray[Any]:
    """All of these rows by step."""
    if more is None or not len(more):
        return rows
    both = np.concatenate([rows, more])
    return both[np.argsort(both["global_step"], kind="stable")]


def _too_long(kind: RowKind, row: Any) -> Fact:
    """What is recorded of a row that no frame can hold."""
    first = kind.own[0].name
    what = {kind.given_up.name.lower(): 1, first: row[first][:99] if kind.own[0].type == "text" else int(row[first])}
    return facts.Dropped(what, _TOO_LONG).to_fact("recorder", int(row["global_step"]))


def encode_singly(
    steps: Sequence[OpenStep | SteadyRow],
    tensors: Sequence[TensorInfo],
    write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]],
    *,
    steady_ids: tuple[int, int],
    more: Sequence[OpenStep] = (),
) -> tuple[list[bytes], int]:
    """Encode each step separately, after :func:`encode_steps` failed; returns the frames and how many steps failed."""
    frames: list[bytes] = []
    lost = 0
    singly = *(((), [tensor], ()) for tensor in tensors), *(([step], (), ()) for step in steps), ((), (), more)
    for some, names, late in singly:
        try:
            frames += encode_steps(some, names, write_tensors, steady_ids=steady_ids, more=late)
        except Exception:
            lost += len(some)
    return frames, lost


def _list_frames(encode: Callable[[Any], bytes], rows: Any) -> tuple[list[bytes], list[Any]]:
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


def _statistics_frames(batch: StatisticsBatch) -> list[bytes]:
    """Frames of all rows, none too large for a reader to decode at once."""
    bins = len(batch.histograms.keys) if batch.histograms is not None else 0
    if len(batch) > 1 and (len(batch) > _FRAME_ROWS or bins > _FRAME_BINS):
        rows = np.arange(len(batch))
        return [frame for half in np.array_split(rows, 2) for frame in _statistics_frames(batch.take(half))]
    return [encode_statistics(batch)]


def _ends(
    steps: Sequence[OpenStep | SteadyRow], whole: Sequence[OpenStep], steady: NDArray[Any] | None,
    captures: dict[int, int],
) -> NDArray[Any]:  # fmt: skip
    """Rows of ended steps in the order of ``steps``."""
    rows = [
        (
            step.global_step, step.mode_step, step.train_step, step.start_ns, max(step.end_ns, step.start_ns),
            captures.get(step.global_step, 0), int(step.mode), step.model,
        )
        for step in _yielding_the_lock(whole)
    ]  # fmt: skip
    if steady is None:
        return table_of(STEPS, rows)
    table = np.empty(len(steps), dtype_of(STEPS))
    is_steady = np.fromiter((isinstance(step, tuple) for step in steps), bool, len(steps))
    table[is_steady], table[~is_steady] = steady, table_of(STEPS, rows)
    return table


def _write_raw(
    kind: RowKind, tensors: Sequence[tuple[int, RawTensor]],
    write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]],
) -> tuple[list[list[Any]], list[Fact]]:  # fmt: skip
    """Rows that say where the tensors are, and facts about those that could not be written: these are lost first."""
    sort = kind.given_up.name.lower()
    fitting = [entry for entry in tensors if is_storable(entry[1])]
    lost = [
        facts.Dropped({sort: 1, "tensor_id": raw.tensor_id}, f"dtype {raw.array.dtype}").to_fact("recorder", step)
        for step, raw in tensors
        if not is_storable(raw)
    ]
    if not fitting:
        return [], lost
    try:
        return [[row[field.name] for field in kind.fields] for row in write_tensors(fitting)], lost
    except StoreError as error:
        return [], [*lost, facts.Dropped({sort: len(fitting)}, str(error)).to_fact("recorder", fitting[0][0])]
