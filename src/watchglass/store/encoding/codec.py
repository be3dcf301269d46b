"""Records to frames and back. Encoders give whole frames; decoders take the payload of a frame that was scanned.

Decoders bound their memory and raise DamagedDataError on nonsense. Rows are encoded as their kind declares (rows.py),
statistics as one Arrow record batch (statistics.py), everything else as JSON (json_payloads.py). docs/run-format.md
specifies each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import (
    STEPS,
    Fact,
    Finding,
    Mode,
    Observation,
    RuleStatus,
    StepEnd,
    TensorInfo,
)
from watchglass.store.encoding.frames import Frame, FrameKind
from watchglass.store.encoding.json_payloads import json_frame, json_object, json_record, json_records
from watchglass.store.encoding.rows import decode_rows, encode_rows, table_of
from watchglass.store.encoding.tensors import MAX_AXES

#: Kinds of records that evaluators write.
JournalRecord: TypeAlias = Finding | RuleStatus | Observation

#: In the order of the arguments of StepEnd.
_STEP_END_COLUMNS = ("global_step", "mode", "mode_step", "train_step", "start_ns", "end_ns", "captures", "model")
_STEP_FIELDS = attrgetter(*(field.name for field in STEPS.fields))
_MODES = {int(mode): mode for mode in Mode if mode is not Mode.GLOBAL}


def encode_header(data: Mapping[str, Any]) -> bytes:
    """A HEADER frame."""
    return json_frame(FrameKind.HEADER, data)


def decode_header(payload: bytes) -> dict[str, Any]:
    """The header of a payload."""
    return json_object(payload, "a header")


def encode_catalog(rows: Sequence[TensorInfo]) -> bytes:
    """A CATALOG frame.

    Raises:
        InvalidValueError: The rows take more than a frame of JSON may (json_payloads.py); so for every one.
    """
    return json_frame(FrameKind.CATALOG, [row.to_json() for row in rows])


def decode_catalog(payload: bytes, left_out: list[DamagedDataError] | None = None) -> list[TensorInfo]:
    """The catalog rows of a payload; those that make no sense are omitted, and ``left_out`` gets why."""
    rows, errors = _catalog(bytes(payload))
    if left_out is not None:
        left_out += errors
    return list(rows)


@lru_cache(maxsize=8)
def _catalog(payload: bytes) -> tuple[tuple[TensorInfo, ...], tuple[DamagedDataError, ...]]:
    """The rows of a catalog, and why others are omitted; workers that train one model write the same catalog."""
    errors: list[DamagedDataError] = []
    return tuple(json_records(payload, "a catalog row", _sound_row, errors)), tuple(errors)


def _sound_row(data: dict[str, Any]) -> TensorInfo:
    row = TensorInfo.from_json(data)
    known = _is_count(row.tensor_id, 32) and _is_count(row.model or 0, 16)
    if not known or len(row.shape) > MAX_AXES or min(row.shape, default=0) < 0:
        raise ValueError("numbers that no tensor has")
    return row


def encode_step_ends(ends: Sequence[StepEnd]) -> bytes:
    """A STEP_ENDS frame."""
    return encode_rows(STEPS, table_of(STEPS, step_rows(ends)))


def step_rows(ends: Iterable[StepEnd]) -> list[tuple[int, ...]]:
    """Ends of steps as rows of :data:`~watchglass.records.STEPS`."""
    return [_STEP_FIELDS(end) for end in ends]


def decode_step_rows(payload: bytes) -> NDArray[Any]:
    """The step ends of a payload as rows of :data:`~watchglass.records.STEPS`."""
    rows = decode_rows(STEPS, payload)
    if len(rows) and not Mode.TRAIN <= int(rows["mode"].min()) <= int(rows["mode"].max()) <= Mode.PREDICT:
        raise DamagedDataError(f"a step end has mode {int(rows['mode'].max())}; 1, 2 and 3 are known")
    if len(rows) and int(rows["train_step"].min()) < -1:
        raise DamagedDataError(f"a step end has train_step {int(rows['train_step'].min())}; -1 is the least")
    for name in ("global_step", "mode_step"):
        if len(rows) and int(rows[name].max()) >= 1 << 62:
            raise DamagedDataError(f"a step end has {name} {int(rows[name].max())}; no run has so many steps")
    return rows


def step_ends(rows: NDArray[Any]) -> list[StepEnd]:
    """Rows of :data:`~watchglass.records.STEPS` as records."""
    columns = [rows[name].tolist() for name in _STEP_END_COLUMNS]
    columns[1] = [_MODES[mode] for mode in columns[1]]
    return [StepEnd(*row) for row in zip(*columns, strict=True)]


def decode_step_ends(payload: bytes) -> list[StepEnd]:
    """The step ends of a payload."""
    return step_ends(decode_step_rows(payload))


def encode_facts(rows: Sequence[Fact]) -> bytes:
    """A FACTS frame. Numbers that JSON lacks become strings, unknown objects their ``str``."""
    return json_frame(FrameKind.FACTS, [row.to_json() for row in rows])


def facts_of(rows: NDArray[Any]) -> list[Fact]:
    """Rows of :data:`~watchglass.records.FACTS` as records."""
    return [Fact(kind, number, source, data) for number, kind, source, data in rows.tolist()]


def encode_lifecycle(event: Mapping[str, Any]) -> bytes:
    """A LIFECYCLE frame: one event, ``joined`` or ``left``."""
    return json_frame(FrameKind.LIFECYCLE, event)


def decode_lifecycle(payload: bytes) -> dict[str, Any]:
    """The lifecycle event of a payload; has at least the string ``event``."""
    event = json_object(payload, "a lifecycle event")
    if not isinstance(event.get("event"), str):
        raise DamagedDataError(f"a lifecycle event must name its event but is {ascii(event)[:160]}")
    return event


def encode_watermark(time_ns: int) -> bytes:
    """A WATERMARK frame: no row of the stream with an earlier time will come."""
    return json_frame(FrameKind.WATERMARK, {"time_ns": time_ns})


def decode_watermark(payload: bytes) -> int:
    """The time of a watermark."""
    found: Any = json_object(payload, "a watermark").get("time_ns")
    if not _is_count(found, 63):
        raise DamagedDataError(f"a watermark must have a time but has {ascii(found)[:80]}")
    return int(found)


def encode_record(record: JournalRecord) -> bytes:
    """A frame of the journal. A finding replaces an earlier one with its id, a status the earlier one of its rule."""
    kinds = {Finding: FrameKind.FINDING, RuleStatus: FrameKind.STATUS, Observation: FrameKind.OBSERVATION}
    return json_frame(kinds[type(record)], record.to_json())


def decode_record(frame: Frame) -> JournalRecord:
    """The record of a frame of the journal.

    Raises:
        DamagedDataError: Its payload is invalid.
    """
    if frame.kind == FrameKind.FINDING:
        return decode_finding(frame.payload)
    return (decode_status if frame.kind == FrameKind.STATUS else decode_observation)(frame.payload)


def decode_finding(payload: bytes) -> Finding:
    """The finding of a payload."""
    return json_record(payload, "a finding", _sound_finding)


def _sound_finding(data: dict[str, Any]) -> Finding:
    found = Finding.from_json(data)
    if not _is_count(found.model or 0, 16):
        raise ValueError("a number that no model has")
    return found


def decode_status(payload: bytes) -> RuleStatus:
    """The rule status of a payload."""
    return json_record(payload, "a status", RuleStatus.from_json)


def decode_observation(payload: bytes) -> Observation:
    """The observation of a payload."""
    return json_record(payload, "an observation", Observation.from_json)


def _is_count(value: Any, bits: int) -> bool:
    return type(value) is int and 0 <= value < 1 << bits
