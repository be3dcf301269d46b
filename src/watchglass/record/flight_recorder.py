"""The flight recorder: the records of the last steps, in files that survive ``kill -9``.

The training thread writes a row for each TRAIN step whose update is done; the recorder's thread copies whole steps
and catalog rows every twentieth of a second, long before they are encoded and flushed. They are
read in :mod:`watchglass.record.harvesting`.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.record.merging import joined, resolved
from watchglass.record.open_steps import Captured, CapturedRecords, OpenStep, SteadyRow
from watchglass.records import Mode, Reduction, StepPhase, TensorInfo, UnitKind
from watchglass.stats import Histograms
from watchglass.store import (
    ABSENT,
    ABSENT_BITS,
    Rings,
    RowWriter,
    decode_catalog,
    decode_facts,
    encode_catalog,
    encode_facts,
    scan,
)

_log = logging.getLogger("watchglass")

#: First byte of an entry: its kind.
_STEP, _ROWS, _CATALOG = b"S", b"R", b"C"
#: The fields of a steady row.
_ROW = struct.Struct("<QQQQddd7Q")
#: Before rows: the tensor ids of their losses and learning rates.
_ROW_IDS = struct.Struct("<II")
#: Bits of the step's number in a row of the ring; the number of the trained model is in the bits above.
_STEP_BITS = 48
#: A step that takes more than this share of the ring is kept without its statistics.
_SHARE = 4


class FlightRecorder:
    """Writes into the rings of one worker. While they are not open it discards everything.

    Attributes:
        row: :meth:`RowWriter.write <watchglass.store.RowWriter.write>`, for the training thread.
    """

    def __init__(self) -> None:
        self._rings: Rings | None = None
        self._keeps = True
        self._ids = (0, 0)
        self._rows = RowWriter()
        self.row = self._rows.write

    def open(self, rings: Rings) -> None:
        """Write into these rings from now on. Called on the recorder's thread."""
        for reason in rings.refused:
            _log.info("watchglass: the flight recorder has no %s", reason)
        self._rings = rings
        if rings.rows is not None:
            self._rows.open(rings.rows)
        _open.add(self)

    def updated(self, step: OpenStep) -> None:
        """:meth:`row` for a step, open or finished, from what was recorded of it so far."""
        loss_id, rate_id = self._ids
        mean, total, rate = ABSENT, 0.0, ABSENT
        captured = [forward.records for forward in step.forwards if forward.has_records]
        for records in (*captured, step.records):
            for tensor_id, weight, value in records.scalars:
                if type(value) is not float:
                    continue
                if tensor_id == loss_id:
                    # The mean over micro-batches, as the encoder takes it.
                    mean = (total * mean + weight * value) / (total + weight) if total and total + weight else value
                    total += weight
                elif tensor_id == rate_id:
                    rate = value
        end_ns = max(step.end_ns, step.start_ns)
        numbered = step.mode_step | step.model << _STEP_BITS
        self.row(step.global_step, numbered, step.start_ns, end_ns, mean, rate, total)

    def finished(self, step: OpenStep) -> None:
        """:meth:`updated`, unless the last row is of this step."""
        if step.mode is Mode.TRAIN and step.global_step != self._rows.last_step:
            self.updated(step)

    def name_tensor(self, info: TensorInfo) -> None:
        """Note the tensor ids of loss and learning rate. For the training thread, before the first row with them."""
        if info.name == "loss":
            self._ids = (info.tensor_id, self._ids[1])
        elif info.name == "learning_rate":
            self._ids = (self._ids[0], info.tensor_id)
        else:
            return
        self._rows.name_ids(*self._ids)

    def keep(self, steps: Sequence[OpenStep | SteadyRow], tensors: Sequence[TensorInfo]) -> None:
        """Copy finished steps and catalog rows. For the recorder's thread; never raises.

        Waits for numbers that a device has not delivered yet, and keeps them with the steps.
        """
        if not self._keeps or self._rings is None or self._rings.entries is None:
            return
        ring = self._rings.entries
        try:
            if tensors:
                ring.append(_CATALOG + encode_catalog(tensors))
            rows = [step for step in steps if isinstance(step, tuple)]
            if rows:
                packed = (_ROW.pack(*row[:4], float(resolved(row[4])), *row[5:]) for row in rows)
                ring.append(_ROWS + _ROW_IDS.pack(*self._ids) + b"".join(packed))
            for step in steps:
                if not isinstance(step, tuple):
                    settle(step.records)
                    content = pack(step)
                    ring.append(content if len(content) * _SHARE <= ring.capacity else pack(step, light=True))
        except Exception as error:
            # Recording works without a ring. If the records are broken, the encoder reports it.
            _log.warning("watchglass: the flight recorder is off: %s: %s", type(error).__name__, error)
            # Its file stays for a harvest, and is removed with the others where there is nothing to harvest.
            self._keeps = False

    def close(self, *, discard: bool) -> None:
        """Stop writing; ``discard`` removes the rings, since all records are in the store."""
        self._rows.close()
        rings, self._rings = self._rings, None
        if rings is not None:
            rings.close(discard=discard)


_open: weakref.WeakSet[FlightRecorder] = weakref.WeakSet()


def _leave_all() -> None:
    for flight in _open:
        flight.close(discard=False)  # the rings are the parent's
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def settle(records: CapturedRecords) -> None:
    """Replace everything that a device has not delivered yet by the numbers; waits for them."""
    records.scalars = [(i, w, v if type(v) is float else float(resolved(v))) for i, w, v in records.scalars]
    records.statistics = joined(
        [
            captured._replace(values=resolved(captured.values), histograms=resolved(captured.histograms))
            for captured in records.statistics
        ]
    )
    records.reductions = [(i, kind, float(resolved(value))) for i, kind, value in records.reductions]
    records.units = [(i, kind, resolved(flags)) for i, kind, flags in records.units]
    facts = [(kind, source, resolved(data)) for kind, source, data in records.facts]
    records.facts = [fact for fact in facts if fact[2] is not None]


def pack(step: OpenStep, *, light: bool = False) -> bytes:
    """A settled step as bytes: the length of a JSON head, the head, arrays. Raw tensors are omitted.

    Private to this release and this machine: a ring is read within the life of a run, by the same package.

    Args:
        step: The step.
        light: Leave out statistics and bitmaps as well.
    """
    records = step.records
    arrays: list[NDArray[Any]] = []
    statistics, units = ([], []) if light else (records.statistics, records.units)
    for captured in statistics:
        arrays += [np.asarray(captured.ids, "<u4"), np.asarray(captured.values, "<f8")]
        if captured.histograms is not None:
            bins = captured.histograms
            arrays += [bins.seen, bins.offsets, bins.keys, bins.counts]
    arrays += [np.asarray(flags, bool) for _, _, flags in units]
    if records.facts:
        arrays.append(np.frombuffer(encode_facts(step.facts()), np.uint8))
    head = json.dumps(
        {
            "step": [step.global_step, int(step.mode), step.mode_step, step.train_step, step.start_ns, step.end_ns],
            "model": step.model,
            "scalars": records.scalars,
            "phases": records.phases,
            "pauses": records.pauses,
            "loads": records.loads,
            "statistics": [[captured.sampled, captured.histograms is not None] for captured in statistics],
            "reductions": [[tensor_id, int(kind), value] for tensor_id, kind, value in records.reductions],
            "units": [[tensor_id, int(kind)] for tensor_id, kind, _ in units],
            "facts": bool(records.facts),
            "arrays": [[array.dtype.str, array.shape] for array in arrays],
        },
        separators=(",", ":"),
    ).encode()
    return b"".join([_STEP, len(head).to_bytes(4, "little"), head, *(array.tobytes() for array in arrays)])


def recovered_row(row: Any, ids: tuple[int, int]) -> OpenStep:
    """A step of which only the row in the ring is left.

    Args:
        row: As :func:`watchglass.store.read_rings` gives it.
        ids: Tensor ids of its loss and its learning rate; 0 for none.
    """
    numbered, start_ns, end_ns = (int(row[name]) for name in ("mode_step", "start_ns", "end_ns"))
    mode_step, model = numbered & ((1 << _STEP_BITS) - 1), numbered >> _STEP_BITS
    numbers = ((row["loss"], ids[0], float(row["weight"])), (row["learning_rate"], ids[1], 1.0))
    scalars = [
        (tensor_id, weight, float(value))
        for value, tensor_id, weight in numbers
        if tensor_id and value.view("u8") != ABSENT_BITS
    ]
    return OpenStep(
        int(row["global_step"]), Mode.TRAIN, mode_step, mode_step, start_ns,
        updated=True, end_ns=end_ns, model=model, records=CapturedRecords(scalars=scalars),
    )  # fmt: skip


def unpack(content: bytes) -> list[OpenStep] | list[TensorInfo]:
    """The steps or catalog rows of an entry.

    Raises:
        DamagedDataError: This release did not write it.
    """
    kind, content = content[:1], content[1:]
    try:
        if kind == _CATALOG:
            return [row for frame in scan(content).frames for row in decode_catalog(frame.payload)]
        if kind == _ROWS:
            loss_id, rate_id = _ROW_IDS.unpack_from(content)
            rows = (SteadyRow(*row) for row in _ROW.iter_unpack(content[_ROW_IDS.size :]))
            return [row.opened(CapturedRecords(row.scalars(loss_id, rate_id))) for row in rows]
        if kind == _STEP:
            return [_step(content)]
    except (
        ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError, OverflowError, struct.error,
    ) as error:  # fmt: skip
        raise DamagedDataError(f"an entry of the flight recorder is malformed: {error}") from error
    raise DamagedDataError(f"an entry of the flight recorder is of an unknown kind {kind!r}")


def _step(content: bytes) -> OpenStep:
    end = 4 + int.from_bytes(content[:4], "little")
    head = json.loads(content[4:end])
    arrays = iter(_arrays(content[end:], head["arrays"]))
    number, mode, mode_step, train_step, start_ns, end_ns = head["step"]
    for count in (number, mode_step, train_step, start_ns, end_ns):
        if type(count) is not int or not -1 <= count < 1 << 63:
            raise ValueError(f"{count!r} is neither the number of a step nor a time")
    records = CapturedRecords(
        scalars=[(_id(tensor_id), float(weight), float(value)) for tensor_id, weight, value in head["scalars"]],
        statistics=[_captured(arrays, bool(sampled), binned) for sampled, binned in head["statistics"]],
        reductions=[(_id(tensor_id), Reduction(kind), float(value)) for tensor_id, kind, value in head["reductions"]],
        units=[(_id(tensor_id), UnitKind(kind), next(arrays)) for tensor_id, kind in head["units"]],
        phases=[_phases(each) for each in head["phases"]],
        pauses=[_pause(*each) for each in head["pauses"]],
        loads=[_load(*each) for each in head["loads"]],
    )
    if head["facts"]:
        for frame in scan(next(arrays).tobytes()).frames:
            records.facts += [(fact.kind, fact.source, fact.data) for fact in decode_facts(frame.payload)]
    step = OpenStep(number, Mode(mode), mode_step, train_step, start_ns, updated=True, model=int(head["model"]))
    step.end_ns, step.records = end_ns, records
    return step


def _id(tensor_id: Any) -> int:
    if type(tensor_id) is not int or not 0 <= tensor_id < 1 << 32:
        raise ValueError(f"{tensor_id!r} is not the id of a tensor")
    return tensor_id


def _phases(spent_ns: Any) -> tuple[int, ...]:
    if len(spent_ns) != len(StepPhase) or any(type(each) is not int or not 0 <= each < 1 << 63 for each in spent_ns):
        raise ValueError(f"{spent_ns!r} are no times of phases")
    return tuple(spent_ns)


def _pause(pause: Any, spent_ns: Any) -> tuple[int, int]:
    if type(pause) is not int or not 0 <= pause < 1 << 16 or type(spent_ns) is not int or not 0 <= spent_ns < 1 << 63:
        raise ValueError(f"{pause!r}, {spent_ns!r} are no pause")
    return pause, spent_ns


def _load(loader: Any, loader_worker: Any, batches: Any, fetch_ns: Any, *spent_ns: Any) -> tuple[int, ...]:
    found = (loader, loader_worker, batches, fetch_ns, *spent_ns)
    least = (0, -1, 0, -1, 0, 0, 0)
    most = (1 << 16, 1 << 63, 1 << 32, *[1 << 63] * 4)
    whole = len(found) == len(least) and all(type(each) is int for each in found)
    if not whole or not all(low <= each < high for low, each, high in zip(least, found, most, strict=True)):
        raise ValueError(f"{found!r} are no batches of a data loader")
    return found


def _captured(arrays: Iterator[NDArray[Any]], sampled: bool, binned: bool) -> Captured:
    ids, values = next(arrays).tolist(), next(arrays)
    return Captured(ids, values, sampled, Histograms(*(next(arrays) for _ in range(4))) if binned else None)


def _arrays(content: bytes, described: Sequence[Any]) -> list[NDArray[Any]]:
    found, at = [], 0
    for dtype, shape in described:
        count = int(np.prod(shape, dtype=np.int64))
        found.append(np.frombuffer(content, dtype, count, at).reshape(shape))
        at += found[-1].nbytes
    return found
