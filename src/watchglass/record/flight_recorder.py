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
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.record.merging import joined, resolved, settled
from watchglass.record.open_steps import Captured, CapturedRecords, OpenStep
from watchglass.record.steady_rows import SteadyRow, ring_row
from watchglass.records import (
    ROW_KINDS,
    Encoding,
    GivenUp,
    Mode,
    Row,
    RowKind,
    StepPhase,
    TensorInfo,
)
from watchglass.stats import Histograms
from watchglass.store import (
    Rings,
    RowWriter,
    decode_catalog,
    decode_rows,
    encode_catalog,
    encode_rows,
    holds,
    scan,
    table_of,
)

_log = logging.getLogger("watchglass")

#: First byte of an entry: its kind.
_STEP, _ROWS, _CATALOG = b"S", b"R", b"C"
#: The fields of a steady row.
_ROW = struct.Struct(f"<QQQQddd{len(StepPhase)}Q")
#: Before rows: the tensor ids of their losses and learning rates.
_ROW_IDS = struct.Struct("<II")
#: A step that takes more than this share of the ring is kept without its statistics.
_SHARE = 4


class FlightRecorder:
    """Writes into the rings of one worker. While they are not open it discards everything."""

    def __init__(self) -> None:
        self._rings: Rings | None = None
        self._keeps = True
        self._ids = (0, 0)
        self._rows = RowWriter()
        #: :meth:`RowWriter.write <watchglass.store.RowWriter.write>`, for the training thread.
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
        self.row(*ring_row(step, self._ids))

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
    for kind, rows in records.rows.items():
        if kind.given_up is not GivenUp.RAW:
            found = settled(kind, rows)
            records.rows[kind] = joined(found) if kind.encoding is Encoding.STATISTICS else found


def pack(step: OpenStep, *, light: bool = False) -> bytes:
    """A settled step as bytes: the length of a JSON head, the head, arrays. Raw tensors are omitted.

    Private to this release and this machine: a ring is read within the life of a run, by the same package.

    Args:
        step: The step.
        light: Leave out statistics and bitmaps as well.
    """
    arrays: list[NDArray[Any]] = []

    def placed(value: Any) -> Any:
        """What JSON has for a value that it lacks: the place of an array."""
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return len(arrays) - 1
        if isinstance(value, Histograms):
            return [placed(each) for each in (value.seen, value.offsets, value.keys, value.counts)]
        return value.item()

    rows: dict[int, Any] = {}
    least = GivenUp.STATISTICS if light else GivenUp.RAW
    for kind, found in step.records.rows.items():
        if found and kind.given_up > least:
            rows[kind.number] = found
            if kind.encoding is Encoding.JSON:
                frame = encode_rows(kind, table_of(kind, [(step.global_step, *row) for row in found]))
                rows[kind.number] = np.frombuffer(frame, np.uint8)
            elif kind.encoding is Encoding.STATISTICS:
                rows[kind.number] = [each._replace(ids=np.asarray(each.ids, "<u4")) for each in found]
    times = [step.global_step, int(step.mode), step.mode_step, step.train_step, step.start_ns, step.end_ns]
    head = {"step": times, "model": step.model, "rows": rows}
    text = json.dumps(head, separators=(",", ":"), default=placed)
    described = json.dumps([[array.dtype.str, array.shape] for array in arrays]) if arrays else "[]"
    parts = [f"[{text},{described}]".encode(), *(array.tobytes() for array in arrays)]
    return b"".join([_STEP, len(parts[0]).to_bytes(4, "little"), *parts])


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
            ids = _ROW_IDS.unpack_from(content)
            rows = (SteadyRow(*row) for row in _ROW.iter_unpack(content[_ROW_IDS.size :]))
            return [row.opened(CapturedRecords(), ids) for row in rows]
        if kind == _STEP:
            return [_step(content)]
    except (
        ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError, OverflowError, struct.error,
    ) as error:  # fmt: skip
        raise DamagedDataError(f"an entry of the flight recorder is malformed: {error}") from error
    raise DamagedDataError(f"an entry of the flight recorder is of an unknown kind {kind!r}")


def _step(content: bytes) -> OpenStep:
    end = 4 + int.from_bytes(content[:4], "little")
    head, described = json.loads(content[4:end])
    arrays = _arrays(content[end:], described)
    number, mode, mode_step, train_step, start_ns, end_ns = head["step"]
    for count in (number, mode_step, train_step, start_ns, end_ns):
        if type(count) is not int or not -1 <= count < 1 << 63:
            raise ValueError(f"{count!r} is neither the number of a step nor a time")
    step = OpenStep(number, Mode(mode), mode_step, train_step, start_ns, updated=True, model=int(head["model"]))
    step.end_ns = end_ns
    for key, rows in head["rows"].items():
        kind = ROW_KINDS[int(key)]
        if kind.encoding is Encoding.JSON:
            tables = [decode_rows(kind, frame.payload) for frame in scan(arrays[rows].tobytes()).frames]
            step.records.rows[kind] = [row[1:] for table in tables for row in table.tolist()]
        else:
            read = _captured if kind.encoding is Encoding.STATISTICS else partial(_row, kind)
            step.records.rows[kind] = [read(row, arrays) for row in rows]
    return step


def _row(kind: RowKind, row: Any, arrays: Sequence[NDArray[Any]]) -> Row:
    found = tuple([arrays[value] if field.array else value for field, value in zip(kind.own, row, strict=True)])
    if not all(map(holds, kind.own, found)):
        raise ValueError(f"{found!r:.200} is no row of {kind.name}")
    return found


def _captured(entry: Any, arrays: Sequence[NDArray[Any]]) -> Captured:
    ids, values, sampled, histograms = entry
    bins = None if histograms is None else Histograms(*(arrays[place] for place in histograms))
    return Captured(arrays[ids].tolist(), arrays[values], bool(sampled), bins)


def _arrays(content: bytes, described: Sequence[Any]) -> list[NDArray[Any]]:
    found, at = [], 0
    for dtype, shape in described:
        count = int(np.prod(shape, dtype=np.int64))
        found.append(np.frombuffer(content, dtype, count, at).reshape(shape))
        at += found[-1].nbytes
    return found
