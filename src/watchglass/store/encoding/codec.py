"""Records to frames and back. Encoders give whole frames; decoders take the payload of a frame that was scanned.

Decoders bound their memory and raise DamagedDataError on nonsense. Scalars, reductions and step ends are fixed-size
little-endian rows; bitmaps are rows followed by the bits; statistics are one Arrow record batch (statistics.py);
everything else is JSON (json_payloads.py). docs/run-format.md specifies each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import (
    REDUCTION_FIELDS,
    SCALAR_FIELDS,
    STEP_END_FIELDS,
    Fact,
    Finding,
    Mode,
    Observation,
    RuleStatus,
    StepEnd,
    TensorInfo,
)
from watchglass.store.encoding.axes import MAX_AXES
from watchglass.store.encoding.frames import FrameKind, encode_frame
from watchglass.store.encoding.json_payloads import json_frame, json_object, json_record, json_records

SCALAR_DTYPE = np.dtype(list(SCALAR_FIELDS))
REDUCTION_DTYPE = np.dtype(list(REDUCTION_FIELDS))
STEP_END_DTYPE = np.dtype(list(STEP_END_FIELDS))
UNIT_DTYPE = np.dtype(
    [("global_step", "<u8"), ("tensor_id", "<u4"), ("units", "<u4"), ("kind", "u1"), ("reserved", "u1", (7,))]
)

#: In the order of the arguments of StepEnd.
_STEP_END_COLUMNS = ("global_step", "mode", "mode_step", "train_step", "start_ns", "end_ns", "captures", "model")
_MODES = {int(mode): mode for mode in Mode if mode is not Mode.GLOBAL}


@dataclass
class UnitsBatch:
    """Bitmaps over units, one row each.

    Attributes:
        global_step: u64[n], worker's step.
        tensor_id: u32[n].
        kind: u8[n], a :class:`~watchglass.records.UnitKind`.
        units: u32[n], number of units.
        bits: n byte strings of ``ceil(units / 8)`` bytes; unit i is bit ``i % 8`` of byte ``i // 8``.
    """

    global_step: NDArray[np.uint64]
    tensor_id: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    units: NDArray[np.uint32]
    bits: list[bytes]

    def __len__(self) -> int:
        return len(self.bits)


def encode_header(data: Mapping[str, Any]) -> bytes:
    """A HEADER frame."""
    return json_frame(FrameKind.HEADER, data)


def decode_header(payload: bytes) -> dict[str, Any]:
    """What :func:`encode_header` got."""
    return json_object(payload, "a header")


def encode_catalog(rows: Sequence[TensorInfo]) -> bytes:
    """A CATALOG frame.

    Raises:
        InvalidValueError: The rows take more than a frame of JSON may (json_payloads.py); so for every one.
    """
    return json_frame(FrameKind.CATALOG, [row.to_json() for row in rows])


def decode_catalog(payload: bytes, left_out: list[DamagedDataError] | None = None) -> list[TensorInfo]:
    """The catalog rows of a payload; those that make no sense are left out, and ``left_out`` gets why."""
    return json_records(payload, "a catalog row", _sound_row, left_out)


def _sound_row(data: dict[str, Any]) -> TensorInfo:
    row = TensorInfo.from_json(data)
    if not _is_sound(row):
        raise TypeError("fields of the wrong type")
    return row


def _is_sound(row: Any) -> bool:
    """Whether a catalog row has the types that its class declares; it was made from foreign JSON."""
    return (
        _is_count(row.tensor_id, 32)
        and _all_text((row.name, row.module, row.module_type, row.dtype, row.placement, *row.collections))
        and _all_integers((row.layer_index, 0 if row.unit_axis is None else row.unit_axis))
        and len(row.shape) <= MAX_AXES
        and all(_is_count(size, 63) for size in row.shape)
        and row.trainable in (None, True, False)
        and (row.model is None or _is_count(row.model, 16))
    )


def encode_scalars(rows: NDArray[Any]) -> bytes:
    """A SCALARS frame from a structured array with :data:`~watchglass.records.SCALAR_FIELDS`."""
    return encode_frame(FrameKind.SCALARS, np.ascontiguousarray(rows, dtype=SCALAR_DTYPE).tobytes())


def decode_scalars(payload: bytes) -> NDArray[Any]:
    """Structured array of :data:`SCALAR_DTYPE`; read-only, no copy."""
    return _rows(payload, SCALAR_DTYPE, "scalars")


def encode_reductions(rows: NDArray[Any]) -> bytes:
    """A REDUCTIONS frame from a structured array with :data:`~watchglass.records.REDUCTION_FIELDS`."""
    return encode_frame(FrameKind.REDUCTIONS, np.ascontiguousarray(rows, dtype=REDUCTION_DTYPE).tobytes())


def decode_reductions(payload: bytes) -> NDArray[Any]:
    """Structured array of :data:`REDUCTION_DTYPE`; read-only, no copy. May hold reductions of later releases."""
    return _rows(payload, REDUCTION_DTYPE, "reductions")


def encode_step_ends(rows: Sequence[StepEnd] | NDArray[Any]) -> bytes:
    """A STEP_ENDS frame from records, or from a structured array with STEP_END_FIELDS."""
    if not isinstance(rows, np.ndarray):
        rows = np.array(
            [
                (r.global_step, r.mode_step, r.train_step, r.start_ns, r.end_ns, r.captures, int(r.mode), r.model)
                for r in rows
            ],
            dtype=STEP_END_DTYPE,
        )
    return encode_frame(FrameKind.STEP_ENDS, np.ascontiguousarray(rows, dtype=STEP_END_DTYPE).tobytes())


def decode_step_ends(payload: bytes) -> list[StepEnd]:
    """The step ends of a payload."""
    rows = _rows(payload, STEP_END_DTYPE, "step ends")
    if len(rows) and not np.isin(rows["mode"], (Mode.TRAIN, Mode.EVAL, Mode.PREDICT)).all():
        raise DamagedDataError(f"a step end has mode {int(rows['mode'].max())}; 1, 2 and 3 are known")
    if len(rows) and int(rows["train_step"].min()) < -1:
        raise DamagedDataError(f"a step end has train_step {int(rows['train_step'].min())}; -1 is the least")
    for name in ("global_step", "mode_step"):
        if len(rows) and int(rows[name].max()) >= 1 << 62:
            raise DamagedDataError(f"a step end has {name} {int(rows[name].max())}; no training has so many steps")
    columns = [rows[name].tolist() for name in _STEP_END_COLUMNS]
    columns[1] = [_MODES[mode] for mode in columns[1]]
    return [StepEnd(*row) for row in zip(*columns, strict=True)]


def encode_units(batch: UnitsBatch) -> bytes:
    """A UNITS frame: u32 number of rows, the rows, then the bits of each row one after another."""
    rows = np.zeros(len(batch), dtype=UNIT_DTYPE)
    for field in ("global_step", "tensor_id", "kind", "units"):
        rows[field] = getattr(batch, field)
    return encode_frame(FrameKind.UNITS, len(rows).to_bytes(4, "little") + rows.tobytes() + b"".join(batch.bits))


def decode_units(payload: bytes) -> UnitsBatch:
    """The bitmaps of a payload."""
    number = int.from_bytes(payload[:4], "little")
    start = 4 + number * UNIT_DTYPE.itemsize
    if len(payload) < 4 or start > len(payload):
        raise DamagedDataError(f"a bitmap table claims {number} rows but has {len(payload)} bytes")
    rows = np.frombuffer(payload, dtype=UNIT_DTYPE, count=number, offset=4)
    ends = start + np.cumsum((rows["units"].astype(np.int64) + 7) // 8)
    if (int(ends[-1]) if number else start) != len(payload):
        raise DamagedDataError(f"bitmaps of {number} rows do not fill their {len(payload)} bytes")
    edges = [start, *ends.tolist()]
    bits = [payload[a:b] for a, b in pairwise(edges)]
    return UnitsBatch(rows["global_step"], rows["tensor_id"], rows["kind"], rows["units"], bits)


def encode_facts(rows: Sequence[Fact]) -> bytes:
    """A FACTS frame. Numbers that JSON lacks become strings, unknown objects their ``str``."""
    # Not by to_json(), which copies the data first: what is in there may refuse that, or hold itself.
    return json_frame(
        FrameKind.FACTS,
        [{"kind": row.kind, "global_step": row.global_step, "source": row.source, "data": row.data} for row in rows],
    )


def decode_facts(payload: bytes, left_out: list[DamagedDataError] | None = None) -> list[Fact]:
    """The facts of a payload; those that make no sense are left out, and ``left_out`` gets why."""
    return json_records(payload, "a fact", _sound_fact, left_out)


def _sound_fact(data: dict[str, Any]) -> Fact:
    fact = Fact.from_json(data)
    fields: tuple[Any, ...] = (fact.kind, fact.global_step, fact.source, fact.data)
    if not all(type(field) is kind for field, kind in zip(fields, (str, int, str, dict), strict=True)):
        raise TypeError("fields of the wrong type")
    return fact


def encode_lifecycle(event: Mapping[str, Any]) -> bytes:
    """A LIFECYCLE frame: one event, ``joined`` or ``left``."""
    return json_frame(FrameKind.LIFECYCLE, event)


def decode_lifecycle(payload: bytes) -> dict[str, Any]:
    """The lifecycle event of a payload; has at least the string ``event``."""
    event = json_object(payload, "a lifecycle event")
    if not isinstance(event.get("event"), str):
        raise DamagedDataError(f"a lifecycle event must name its event but is {ascii(event)[:160]}")
    return event


def encode_raw_index(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A RAW frame: rows ``{"global_step", "tensor_id", "file", "key"}``."""
    return json_frame(FrameKind.RAW, [dict(row) for row in rows])


def decode_raw_index(payload: bytes, left_out: list[DamagedDataError] | None = None) -> list[dict[str, Any]]:
    """Where raw tensors are: rows ``{"global_step", "tensor_id", "file", "key"}``; left out as by decode_facts."""
    return json_records(payload, "a raw index row", _sound_place, left_out)


def _sound_place(data: dict[str, Any]) -> dict[str, Any]:
    counts = _is_count(data.get("global_step"), 64) and _is_count(data.get("tensor_id"), 32)
    if not (counts and isinstance(data.get("file"), str) and isinstance(data.get("key"), str)):
        raise TypeError("fields of the wrong type")
    return data


def encode_finding(finding: Finding) -> bytes:
    """A FINDING frame; a later frame with the same id replaces the earlier one."""
    return json_frame(FrameKind.FINDING, finding.to_json())


def decode_finding(payload: bytes) -> Finding:
    """The finding of a payload."""
    return json_record(payload, "a finding", _sound_finding)


def _sound_finding(data: dict[str, Any]) -> Finding:
    found = Finding.from_json(data)
    texts = (found.id, found.rule, found.worker, found.message, *found.tensors, *found.causes, *found.what_to_try)
    numbers = (found.step, found.last_step, found.count, found.attempt, found.global_step)
    plain = _all_text(texts) and _all_integers(numbers) and _is_count(found.model, 16)
    if not plain or not isinstance(found.evidence, dict):
        raise TypeError("fields of the wrong type")
    return found


def encode_status(status: RuleStatus) -> bytes:
    """A STATUS frame; a later frame of the same rule replaces the earlier one."""
    return json_frame(FrameKind.STATUS, status.to_json())


def decode_status(payload: bytes) -> RuleStatus:
    """The rule status of a payload."""
    return json_record(payload, "a status", _sound_status)


def _sound_status(data: dict[str, Any]) -> RuleStatus:
    status = RuleStatus.from_json(data)
    if not _all_text((status.rule, status.reason)):
        raise TypeError("fields of the wrong type")
    return status


def encode_observation(observation: Observation) -> bytes:
    """An OBSERVATION frame."""
    return json_frame(FrameKind.OBSERVATION, observation.to_json())


def decode_observation(payload: bytes) -> Observation:
    """The observation of a payload."""
    return json_record(payload, "an observation", _sound_observation)


def _sound_observation(data: dict[str, Any]) -> Observation:
    seen: Any = Observation.from_json(data)
    place = seen.after if seen.after is not None else (0, 0, 0)
    numbers = (seen.attempt, *place)
    if not _all_text((seen.kind,)) or not _all_integers(numbers) or len(place) != 3 or not isinstance(seen.data, dict):
        raise TypeError("fields of the wrong type")
    return Observation(seen.kind, seen.attempt, seen.after, seen.data)


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _all_integers(values: Iterable[Any]) -> bool:
    """Whether all are integers that tables and arrays have room for."""
    return all(type(value) is int and -1 << 63 <= value < 1 << 63 for value in values)


def _is_count(value: Any, bits: int) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def _rows(payload: bytes, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if len(payload) % dtype.itemsize:
        raise DamagedDataError(f"rows of {what} take {dtype.itemsize} bytes each but {len(payload)} are there")
    return np.frombuffer(payload, dtype=dtype)
